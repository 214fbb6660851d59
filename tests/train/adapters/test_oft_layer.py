"""Training by one batch of rotations gives the outputs and gradients of PEFT's own layers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from oft_twins import IDS, OTHER_IDS, do_both, gap, gradients, layer, logits_of, loss_of, trained, twins

from train.adapters import attach

FORMS: dict[str, dict[str, Any]] = {
    "exact": {},
    "exact, turned far": {"std": 0.5},
    "series": {"use_cayley_neumann": True},
    "series of three": {"use_cayley_neumann": True, "num_cayley_neumann_terms": 3},
    "shared": {"block_share": True},
    "shared series": {"block_share": True, "use_cayley_neumann": True},
    "number of blocks": {"r": 4, "oft_block_size": 0},
    "one block": {"oft_block_size": 64, "sizes": {"intermediate_size": 64}},
    "auto, 36 and 64 inputs": {"oft_block_size": 32, "sizes": {"intermediate_size": 36}},
    "auto, 90 and 64 inputs": {"oft_block_size": 32, "sizes": {"intermediate_size": 90}},
    "coft, small": {"coft": True, "eps": 1e-3},
    "coft, large": {"coft": True, "eps": 100.0},
    "coft, series, shared": {"coft": True, "eps": 0.1, "use_cayley_neumann": True, "block_share": True},
    "some targets": {"targets": ["k_proj", "v_proj", "up_proj"]},
}


def step(model: Any) -> dict[str, torch.Tensor]:
    loss_of(model).backward()
    return gradients(model)


def equal_after(work: Callable[[Any], Any], **settings: Any) -> None:
    """Both models' gradients after `work`, to 1e-6."""
    pair = twins(**settings)
    do_both(pair, work)
    assert gap(*do_both(pair, gradients)) < 1e-6


def checkpointed(model: Any, reentrant: bool = False) -> None:
    if reentrant:
        model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
@pytest.mark.parametrize("form", FORMS)
def test_outputs_and_gradients_are_those_of_peft(form: str, family: str) -> None:
    pair = twins(family, **FORMS[form])
    outputs = do_both(pair, logits_of)
    assert (outputs[0] - outputs[1]).abs().max() < 1e-6
    found = do_both(pair, step)
    assert gap(*found) < 1e-6
    assert len(found[1]) == len(trained(pair[1]))


@pytest.mark.parametrize("eps", [1e-3, 0.05, 100.0])
def test_constrained_parameters_are_projected_as_peft_does(eps: float) -> None:
    pair = twins(coft=True, eps=eps)
    do_both(pair, step)
    left, right = do_both(pair, trained)
    assert max((left[name] - right[name]).abs().max().item() for name in left) < 1e-6


def accumulate(model: Any) -> None:
    loss_of(model).backward()
    loss_of(model, OTHER_IDS).backward()


def with_steps_between(model: Any) -> None:
    optimizer = torch.optim.AdamW(trained(model).values(), lr=1e-2, eps=1e-3)
    for ids in (IDS, OTHER_IDS, IDS):
        optimizer.zero_grad()
        loss_of(model, ids).backward()
        loss_of(model).backward()
        optimizer.step()
    optimizer.zero_grad()
    step(model)


def together(model: Any) -> None:
    (loss_of(model) + loss_of(model, OTHER_IDS)).backward()


def twice(model: Any) -> None:
    loss = loss_of(model)
    loss.backward(retain_graph=True)
    loss.backward()


def after_other_modes(model: Any) -> None:
    with torch.inference_mode():
        model(input_ids=IDS)
    with torch.no_grad():
        model(input_ids=IDS)
    model.eval()
    loss_of(model)
    model.train()
    step(model)


def in_any_order(model: Any) -> None:
    first, second = loss_of(model), loss_of(model, OTHER_IDS)
    second.backward()
    first.backward()


WAYS = [step, accumulate, with_steps_between, together, twice, after_other_modes, in_any_order]


@pytest.mark.parametrize("form", ["exact", "series", "coft, small"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("checkpoints", [False, True])
def test_every_way_to_train_gives_the_gradients_of_peft(
    way: Callable[[Any], Any], form: str, checkpoints: bool
) -> None:
    def work(model: Any) -> None:
        if checkpoints:
            checkpointed(model)
        way(model)

    equal_after(work, **FORMS[form])


@pytest.mark.parametrize("way", [step, together])
def test_reentrant_checkpoints_give_the_gradients_of_peft(way: Callable[[Any], Any]) -> None:
    def work(model: Any) -> None:
        checkpointed(model, reentrant=True)
        way(model)

    equal_after(work)


@pytest.mark.parametrize("way", [step, in_any_order])
def test_a_single_layer_is_checkpointed_alike(way: Callable[[Any], Any]) -> None:
    def work(model: Any) -> None:
        checkpointed(model)
        way(model)

    equal_after(work, num_layers=1)


def test_a_frozen_adapter_passes_the_gradient_of_its_input_on() -> None:
    found = []
    for model in twins():
        step(model)
        model.zero_grad()
        model.requires_grad_(False)
        inputs = torch.randn(2, 12, 64, generator=torch.Generator().manual_seed(3)).requires_grad_()
        model(inputs_embeds=inputs, labels=IDS).loss.backward()
        assert not gradients(model)
        found.append(inputs.grad)
    assert found[0].abs().max() > 1e-3
    assert (found[0] - found[1]).abs().max() < 1e-6


def test_parameters_that_are_frozen_get_no_gradient_and_the_others_theirs() -> None:
    def work(model: Any) -> None:
        for name, parameter in model.named_parameters():
            if "k_proj" in name or "down_proj" in name:
                parameter.requires_grad_(False)
        step(model)

    equal_after(work)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", ["exact", "series"])
def test_half_precision_bases_are_as_near_to_fp32_as_peft_is(dtype: torch.dtype, form: str) -> None:
    reference, _ = twins(**FORMS[form])
    reference.to(dtype).to(torch.float32)
    pair = twins(dtype=dtype, **FORMS[form])
    for model in pair:
        assert {parameter.dtype for parameter in trained(model).values()} == {torch.float32}
    exact = [logits_of(reference), step(reference)]
    others = [[logits_of(model), step(model)] for model in pair]
    spread = exact[0].abs().max().item()
    off = [(other[0] - exact[0]).abs().max().item() / spread for other in others]
    assert max(off) < 16 * torch.finfo(dtype).eps and off[1] < 2 * off[0] + torch.finfo(dtype).eps
    largest = max(tensor.abs().max().item() for tensor in exact[1].values())
    wrong = [gap(exact[1], other[1]) / largest for other in others]
    assert all(tensor.dtype == torch.float32 for tensor in others[1][1].values())
    assert max(wrong) < 16 * torch.finfo(dtype).eps and wrong[1] < 2 * wrong[0] + torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("checkpoints", [False, True])
def test_autocast_is_as_near_to_fp32_as_peft_is(dtype: torch.dtype, checkpoints: bool) -> None:
    reference, _ = twins()
    exact = step(reference)
    largest = max(tensor.abs().max().item() for tensor in exact.values())
    wrong = []
    for model in twins(dtype=dtype):
        if checkpoints:
            checkpointed(model)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model)
        loss.backward()
        wrong.append(gap(exact, gradients(model)) / largest)
    eps = torch.finfo(torch.bfloat16).eps
    assert max(wrong) < 16 * eps and wrong[1] < 2 * wrong[0] + eps


def test_a_layer_returns_the_dtype_of_its_input_as_peft_does() -> None:
    x = torch.ones(3, 64)
    with torch.autocast("cpu", torch.bfloat16):
        found = [layer(model, "q_proj")(x).dtype for model in twins()]
    assert found == [torch.float32] * 2


def test_siblings_of_different_forms_are_turned_each_by_its_own() -> None:
    pair = twins(std=0.2)
    for model in pair:
        rotation = layer(model, "k_proj").oft_R["default"]
        rotation.use_cayley_neumann, rotation.num_cayley_neumann_terms = True, 3
    attach.batched(pair[1])
    assert gap(*do_both(pair, step)) < 1e-6
