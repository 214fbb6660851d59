"""The loss equals the plain computation, value and gradients, and holds no more than a chunk of logits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from train.data.template import IGNORED
from train.loop import loss as loss_module
from train.loop.loss import head_loss, target_loss


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven positions of the tiny vocabulary at a time: chunks that end inside and outside of a sample."""
    monkeypatch.setattr(loss_module, "CHUNK_BYTES", 7 * 4 * 512)
    monkeypatch.setattr(loss_module, "FEWEST_ROWS", 1)


def adapted(tiny: Path, kind: str, targets: Any = ("q_proj", "v_proj", "down_proj")) -> Any:
    """A model whose adapter's weights do something."""
    from peft import LoraConfig, OFTConfig, get_peft_model

    from train.adapters import attach
    from train.loop.model import load_model

    more: dict[str, Any] = {"target_modules": list(targets), "task_type": "CAUSAL_LM"}
    config = LoraConfig(**more) if kind == "lora" else OFTConfig(r=0, oft_block_size=32, **more)
    model: Any = get_peft_model(load_model(tiny, torch.float32, "sdpa"), config)
    model = attach.batched(model).train()
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in attach.trainable(model).values():
            parameter.normal_(std=0.05, generator=draw)
    return model


def rows() -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Two rows of 24 tokens, with targets here and there, also in the first and the last place."""
    draw = torch.Generator().manual_seed(3)
    ids = torch.randint(7, 280, (2, 24), generator=draw)
    labels = ids.masked_fill(torch.rand(ids.shape, generator=draw) < 0.4, IGNORED)
    labels[:, 0] = ids[:, 0]
    labels[:, -1] = ids[:, -1]
    return {"input_ids": ids}, labels


def gradients(model: Any, total: torch.Tensor) -> torch.Tensor:
    learns = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.cat([one.flatten() for one in torch.autograd.grad(total, learns)])


def plain(model: Any, inputs: dict[str, Any], labels: torch.Tensor) -> torch.Tensor:
    logits = model(**inputs, use_cache=False).logits[:, :-1]
    return cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), reduction="sum")


def agree(left: torch.Tensor, right: torch.Tensor) -> None:
    left, right = left.detach(), right.detach()
    assert float((left - right).abs().max() / right.abs().max()) < 1e-6


def agrees_with_all_logits(model: Any) -> None:
    inputs, labels = rows()
    wanted = plain(model, inputs, labels)
    wanted_gradients = gradients(model, wanted)
    found = target_loss(model, model, inputs, labels).total
    agree(found, wanted)
    agree(gradients(model, found), wanted_gradients)


@pytest.mark.parametrize("kind", ["lora", "oft"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_loss_and_gradients_are_those_of_all_logits(tiny: Path, kind: str, checkpointing: bool) -> None:
    model = adapted(tiny, kind)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    agrees_with_all_logits(model)
    assert "forward" not in model.get_output_embeddings().__dict__


@pytest.mark.parametrize("kind", ["lora", "oft"])
def test_a_head_with_an_adapter_learns_from_chunks(tiny: Path, kind: str) -> None:
    model = adapted(tiny, kind, ("lm_head", "q_proj"))
    agrees_with_all_logits(model)


def test_a_head_that_learns_itself_gets_its_gradient(tiny: Path) -> None:
    model = adapted(tiny, "lora")
    model.get_output_embeddings().weight.requires_grad_(True)
    inputs, labels = rows()
    wanted_gradients = gradients(model, plain(model, inputs, labels))
    agree(gradients(model, target_loss(model, model, inputs, labels).total), wanted_gradients)


def test_a_head_that_is_not_called_is_served_from_the_logits(tiny: Path) -> None:
    model = adapted(tiny, "lora")
    inputs, labels = rows()
    wanted = plain(model, inputs, labels)

    class Unasked:
        """A model that multiplies by its head's weight itself."""

        config = model.config

        def get_output_embeddings(self) -> torch.nn.Module:
            return torch.nn.Linear(1, 1)

    agree(target_loss(model, Unasked(), inputs, labels).total, wanted)


@pytest.mark.parametrize("learns", [False, True])
def test_no_more_than_a_chunk_of_logits_is_ever_held(learns: bool) -> None:
    """Nothing that is made or kept between forward and backward is larger than a chunk, or than the head."""
    head = torch.nn.Linear(16, 512, bias=False).requires_grad_(learns)
    hidden = torch.randn(200, 16, requires_grad=True)
    targets = torch.randint(0, 512, (200,))
    largest = 0

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            made = function(*args, **(kwargs or {}))
            sizes = [one.numel() for one in tree_leaves(made) if torch.is_tensor(one)]
            largest = max(largest, *sizes, 0)
            return made

    with Sizes():
        head_loss(hidden, targets, head.forward, head).total.backward()
    assert largest == max(7 * 512, head.weight.numel())
    assert largest < 200 * 512


def test_a_batch_without_targets_has_a_loss_of_zero_and_a_graph(tiny: Path) -> None:
    model = adapted(tiny, "lora")
    inputs, labels = rows()
    total = target_loss(model, model, inputs, torch.full_like(labels, IGNORED)).total
    assert float(total.detach()) == 0
    assert not gradients(model, total).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_an_fp32_softmax(tiny: Path, dtype: torch.dtype) -> None:
    model = adapted(tiny, "lora")
    inputs, labels = rows()
    with torch.autocast("cpu", dtype):
        logits = model(**inputs).logits
        found = target_loss(model, model, inputs, labels).total
        wanted = cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), reduction="sum")
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(float(wanted), rel=1e-5)
    assert torch.isfinite(gradients(model, found)).all()


def test_hits_are_counted_when_asked_for(tiny: Path) -> None:
    model = adapted(tiny, "lora")
    inputs, labels = rows()
    with torch.no_grad():
        found = target_loss(model, model, inputs, labels, count_hits=True)
        guesses = model(**inputs).logits[:, :-1].argmax(-1)
        labels[:, 2] = guesses[:, 1]
        again = target_loss(model, model, inputs, labels, count_hits=True)
    assert again.hits is not None and found.hits is not None
    assert 2 <= int(again.hits) <= int(found.hits) + 2
    agree(found.total, target_loss(model, model, inputs, rows()[1]).total.detach())
