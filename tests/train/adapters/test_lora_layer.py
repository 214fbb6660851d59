"""LoRA with factors put together for the whole model computes what PEFT's layers compute, in every way to
train.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lora_twins import checkpointed, step, twins
from oft_twins import IDS, OTHER_IDS, do_both, fill, gap, gradients, layer, logits_of, loss_of, trained
from peft.tuners.lora.layer import Linear
from torch.utils.checkpoint import checkpoint

from train.adapters.lora_layer import factors_of

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "ranks": {"rank_pattern": {"k_proj": 2, "gate_proj": 6}, "alpha_pattern": {"v_proj": 3, "down_proj": 4}},
    "scaling of 1": {"lora_alpha": 4},
    "some layers": {"target_modules": ["q_proj", "v_proj", "up_proj"]},
}


def equal_after(work: Callable[[Any], Any], **settings: Any) -> None:
    """The same gradients by PEFT and by us, and none of them by PEFT's own forward of a layer."""
    pair = twins(**settings)
    do_both(pair, work)
    assert gap(*do_both(pair, gradients)) < 1e-6


@pytest.fixture
def peft_forwards(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The layers whose forward PEFT computes; a subclass's call of it counts."""
    called = []
    forward = Linear.forward

    def noted(self: Any, *arguments: Any, **named: Any) -> torch.Tensor:
        called.append(self)
        return forward(self, *arguments, **named)

    monkeypatch.setattr(Linear, "forward", noted)
    return called


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
@pytest.mark.parametrize("settings", SETTINGS)
def test_outputs_and_gradients_are_those_of_peft(
    family: str, settings: str, peft_forwards: list[Any]
) -> None:
    plain, ours = twins(family, **SETTINGS[settings])
    expected, due = logits_of(plain), step(plain)
    peft_forwards.clear()

    assert (logits_of(ours) - expected).abs().max() < 1e-6
    assert gap(step(ours), due) < 1e-6
    assert not peft_forwards


def accumulate(model: Any) -> None:
    loss_of(model).backward()
    loss_of(model, OTHER_IDS).backward()


def with_fused_steps(model: Any) -> None:
    optimizer = torch.optim.AdamW(trained(model).values(), lr=1e-2, eps=1e-3, fused=True)
    for ids in (IDS, OTHER_IDS, IDS):
        optimizer.zero_grad()
        loss_of(model, ids).backward()
        loss_of(model).backward()
        optimizer.step()
    optimizer.zero_grad()
    step(model)


def after_a_write_to_data(model: Any) -> None:
    step(model)
    model.zero_grad()
    fill(model, 0.1, seed=5)
    step(model)


def together(model: Any) -> None:
    (loss_of(model) + loss_of(model, OTHER_IDS)).backward()


def twice(model: Any) -> None:
    loss = loss_of(model)
    loss.backward(retain_graph=True)
    loss.backward()


def with_other_modes_between(model: Any) -> None:
    with torch.inference_mode():
        model(input_ids=IDS)
    loss = loss_of(model)
    with torch.no_grad():
        model(input_ids=OTHER_IDS)
    loss.backward()


def in_any_order(model: Any) -> None:
    first, second = loss_of(model), loss_of(model, OTHER_IDS)
    second.backward()
    first.backward()


def after_a_forward_that_failed(model: Any) -> None:
    up = layer(model, "up_proj")
    handle = up.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(input_ids=IDS)
    handle.remove()
    step(model)


WAYS = [
    step,
    accumulate,
    with_fused_steps,
    after_a_write_to_data,
    together,
    twice,
    with_other_modes_between,
    in_any_order,
    after_a_forward_that_failed,
]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("checkpoints", [None, "kept", "reentrant"])
def test_every_way_to_train_gives_the_gradients_of_peft(
    way: Callable[[Any], Any], checkpoints: str | None
) -> None:
    def work(model: Any) -> None:
        if checkpoints:
            checkpointed(model, reentrant=checkpoints == "reentrant")
        way(model)

    equal_after(work)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_are_computed_again_in_the_same_way(reentrant: bool, peft_forwards: list[Any]) -> None:
    _, ours = twins()
    checkpointed(ours, reentrant)

    in_any_order(ours)

    assert not peft_forwards


def test_layers_called_by_themselves_are_peft_and_see_the_weights_as_they_are() -> None:
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(2))

    def work(model: Any) -> torch.Tensor:
        loss_of(model).backward()
        results = [layer(model, "q_proj")(x)]
        fill(model, 0.2, seed=3)
        results += [layer(model, name)(x) for name in ("k_proj", "v_proj")]
        results.append(checkpoint(layer(model, "up_proj"), x, use_reentrant=False))
        torch.cat(results, -1).square().sum().backward()
        return torch.cat(results, -1).detach()

    pair = twins()
    left, right = do_both(pair, work)
    assert (left - right).abs().max() < 1e-5
    assert gap(*do_both(pair, gradients)) < 1e-5


def test_weights_written_within_a_call_without_gradients_are_seen_by_gradients_inside() -> None:
    def work(model: Any) -> torch.Tensor:
        step(model)
        fill(model, 0.2, seed=3)
        block = model.get_base_model().model.layers[0]
        handle = block.register_forward_pre_hook(lambda *_: torch.set_grad_enabled(True) and None)
        try:
            with torch.no_grad():
                return model(input_ids=IDS).logits.detach()
        finally:
            handle.remove()

    left, right = do_both(twins(), work)
    assert (left - right).abs().max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_bases_are_as_near_to_fp32_as_peft_is(dtype: torch.dtype) -> None:
    reference, _ = twins()
    reference.to(dtype).to(torch.float32)
    pair = twins(dtype=dtype)
    exact = [logits_of(reference), step(reference)]
    others = [[logits_of(model), step(model)] for model in pair]

    off = [(other[0] - exact[0]).norm() / exact[0].norm() for other in others]
    wrong = [distance(exact[1], other[1]) for other in others]

    assert {tensor.dtype for tensor in others[1][1].values()} == {torch.float32}
    assert 0 < off[1] < 1.2 * off[0] and 0 < wrong[1] < 1.2 * wrong[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("checkpoints", [False, True])
def test_autocast_is_as_near_to_fp32_as_peft_is(dtype: torch.dtype, checkpoints: bool) -> None:
    exact = step(twins()[0])
    wrong = []
    for model in twins(dtype=dtype):
        if checkpoints:
            checkpointed(model)
        with torch.autocast("cpu", torch.bfloat16):
            output = model(input_ids=IDS, labels=IDS)
        assert output.logits.dtype == torch.bfloat16
        output.loss.backward()
        wrong.append(distance(exact, gradients(model)))
        assert {tensor.dtype for tensor in gradients(model).values()} == {torch.float32}
    assert 0 < wrong[1] < 1.2 * wrong[0]


def distance(exact: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The mean over the parameters of the relative error."""
    errors = [((other[name] - exact[name]).norm() / exact[name].norm()).item() for name in exact]
    return sum(errors) / len(errors)


def test_parameters_that_are_frozen_or_not_reached_get_no_gradient() -> None:
    def work(model: Any) -> None:
        for name, parameter in model.named_parameters():
            if "k_proj" in name or "down_proj.lora_A" in name:
                parameter.requires_grad_(False)
        blocks = model.get_base_model().model.layers
        blocks[1].mlp.forward = lambda x: x * 0.5  # as a vision tower without an image: nobody calls these
        step(model)

    pair = twins()
    do_both(pair, work)
    found = do_both(pair, gradients)
    assert not any("layers.1.mlp" in name or "k_proj" in name for name in found[1])
    assert gap(*found) < 1e-6


@pytest.mark.parametrize("num_layers", [1, 2])
def test_a_step_puts_the_factors_together_once(num_layers: int) -> None:
    from train.adapters import lora_layer

    # With one layer the checkpointed region is a module that holds all adapted layers.
    _, ours = twins(num_layers=num_layers)
    factors: Any = factors_of(ours)
    made = []
    gather = lora_layer.Factors._gather
    factors._gather = lambda dtype: made.append(dtype) or gather(factors, dtype)
    checkpointed(ours)

    loss_of(ours).backward()
    assert made == [torch.float32]
    logits_of(ours)
    assert made == [torch.float32]
    loss_of(ours).backward()
    assert made == [torch.float32] * 2


def test_a_forward_that_failed_leaves_nothing_of_its_inputs() -> None:
    _, ours = twins()
    handle = layer(ours, "up_proj").register_forward_pre_hook(lambda *_: 1 / 0)
    inputs = []
    layer(ours, "gate_proj").register_forward_pre_hook(
        lambda _, arguments: inputs.append(weakref.ref(*arguments))
    )

    with pytest.raises(ZeroDivisionError):
        loss_of(ours)

    handle.remove()
    gc.collect()
    assert [found() for found in inputs] == [None]


def test_after_an_interrupt_the_weights_are_read_anew() -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    pair = twins()
    handle = layer(pair[1], "up_proj").register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        loss_of(pair[1])
    handle.remove()
    do_both(pair, lambda model: fill(model, 0.2, seed=3))

    assert gap(*do_both(pair, step)) < 1e-6
