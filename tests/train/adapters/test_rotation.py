"""One batch per call of a model: made outside of the layers, read by them, never stale, never kept."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from oft_twins import IDS, OTHER_IDS, fill, gap, gradients, layer, logits_of, loss_of, trained, twins

from train.adapters import cayley
from train.adapters.oft_layer import rotations_of


@pytest.fixture
def maps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of blocks of each exact map that was made."""
    made: list[int] = []
    exact = cayley.exact

    def counted(skew: torch.Tensor) -> torch.Tensor:
        made.append(len(skew))
        return exact(skew)

    monkeypatch.setattr(cayley, "exact", counted)
    return made


def test_a_step_makes_one_map_of_all_blocks(maps: list[int]) -> None:
    _, ours = twins()
    loss_of(ours).backward()
    assert maps == [2 * (4 + 4 + 4 + 4 + 4 + 4 + 6)]


@pytest.mark.parametrize("num_layers", [1, 2])
def test_checkpointing_makes_no_map_again(maps: list[int], num_layers: int) -> None:
    _, ours = twins(num_layers=num_layers)
    ours.gradient_checkpointing_enable({"use_reentrant": False})
    loss_of(ours).backward()
    assert len(maps) == 1


def test_only_the_models_call_compares_values(monkeypatch: pytest.MonkeyPatch) -> None:
    _, ours = twins()
    ours.gradient_checkpointing_enable({"use_reentrant": False})
    compared = []
    equal = torch.equal
    monkeypatch.setattr(torch, "equal", lambda *tensors: compared.append(1) or equal(*tensors))
    logits_of(ours)
    logits_of(ours)
    assert len(compared) == 1  # a layer would wait for the device
    loss = loss_of(ours)
    compared.clear()
    loss.backward()
    assert not compared


def test_several_block_sizes_are_one_map_each(maps: list[int]) -> None:
    _, ours = twins(sizes={"intermediate_size": 90}, oft_block_size=32)
    loss_of(ours).backward()
    assert sorted(maps) == [2 * 3, 2 * 6 * 2]  # 90 inputs: blocks of 30


def test_siblings_read_their_input_in_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    from train.adapters.block_product import BlockProduct

    _, ours = twins(num_layers=1)
    widths = []
    forward = BlockProduct.forward

    def counted(ctx: Any, x: torch.Tensor, wide: torch.Tensor) -> Any:
        widths.append(wide.shape[2] // wide.shape[1])
        return forward(ctx, x, wide)

    monkeypatch.setattr(BlockProduct, "forward", staticmethod(counted))
    logits_of(ours)
    assert widths == [3, 1, 2, 1]  # q k v, o, gate up, down


def test_generation_makes_no_map_per_token(maps: list[int]) -> None:
    plain, ours = twins()
    answers = [
        model.eval().generate(input_ids=IDS[:, :5], max_new_tokens=8, do_sample=False)
        for model in (plain, ours)
    ]
    assert answers[0].shape == (2, 13) and torch.equal(*answers)
    assert len(maps) == 1
    fill(ours, 0.3, seed=5)
    fill(plain, 0.3, seed=5)
    again = [
        model.generate(input_ids=IDS[:, :5], max_new_tokens=8, do_sample=False) for model in (plain, ours)
    ]
    assert torch.equal(*again) and not torch.equal(again[0], answers[0])
    assert len(maps) == 2


def write_data(model: Any) -> None:
    """As fused optimizers do: the version counters do not move."""
    for parameter in trained(model).values():
        version = parameter._version
        parameter.data.add_(0.02)
        assert parameter._version == version


PLACES: dict[str, Callable[[Any], Callable[[Any], torch.Tensor]]] = {
    "peft": lambda model: logits_of,
    "base": lambda model: lambda m: logits_of(m.get_base_model()),
    "decoder": lambda model: lambda m: m.get_base_model().model(input_ids=IDS).last_hidden_state.detach(),
    "layer": lambda model: lambda m: layer(m, "q_proj")(torch.ones(3, 64)).detach(),
}


@pytest.mark.parametrize("place", PLACES)
def test_writes_that_leave_no_trace_are_seen_wherever_the_model_is_entered(place: str) -> None:
    results = []
    for model in twins():
        call = PLACES[place](model)
        before = call(model)
        write_data(model)
        results.append(call(model))
        assert (results[-1] - before).abs().max() > 1e-3
    assert (results[0] - results[1]).abs().max() < 5e-6


@pytest.mark.parametrize("fault", [KeyboardInterrupt, ValueError])
def test_an_interrupted_call_leaves_nothing_stale_behind(fault: type[BaseException]) -> None:
    results = []
    for model in twins():

        def interrupt(module: Any, arguments: Any) -> None:
            raise fault

        logits_of(model)
        handle = layer(model, "up_proj", 1).register_forward_pre_hook(interrupt)
        with pytest.raises(fault):
            model(input_ids=IDS)
        handle.remove()
        write_data(model)
        results.append(logits_of(model))
    assert (results[0] - results[1]).abs().max() < 5e-6


def test_a_failed_call_holds_no_tensor() -> None:
    _, ours = twins()
    held = []

    def fail(module: Any, arguments: Any) -> None:
        held.append(weakref.ref(arguments[0]))
        raise ValueError

    handle = layer(ours, "k_proj").register_forward_pre_hook(fail)  # q has taken its part, k and v have not
    with pytest.raises(ValueError):
        ours(input_ids=IDS)
    handle.remove()
    gc.collect()  # the exception's own frames
    assert held[0]() is None


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_step_leaves_no_activation_behind(checkpointed: bool) -> None:
    _, ours = twins()
    if checkpointed:
        ours.gradient_checkpointing_enable({"use_reentrant": False})
    seen: list[Any] = []
    for name in ("q_proj", "v_proj", "down_proj"):
        layer(ours, name).register_forward_hook(
            lambda module, arguments, output: seen.extend(map(weakref.ref, (arguments[0], output)))
        )
    gc.collect()
    gc.disable()  # what only the collector frees would pile up
    try:
        loss_of(ours).backward()
        assert len(seen) >= 6 and not any(reference() is not None for reference in seen)
    finally:
        gc.enable()


def test_a_dropped_model_is_freed() -> None:
    _, ours = twins()
    loss_of(ours).backward()
    loss_of(ours)  # a graph that no backward uses up
    references = [weakref.ref(ours), weakref.ref(rotations_of(ours)), weakref.ref(layer(ours, "q_proj"))]
    del ours
    gc.collect()
    assert [reference() for reference in references] == [None] * 3


def test_each_of_two_forwards_has_its_backward_in_any_order() -> None:
    found = []
    for model in twins():
        first, second = loss_of(model), loss_of(model, OTHER_IDS)
        second.backward()
        first.backward()
        found.append(gradients(model))
    assert gap(*found) < 1e-6


def test_what_one_mode_made_is_not_used_in_another() -> None:
    found = []
    for model in twins():
        loss_of(model)
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                loss_of(model)
            with torch.inference_mode():
                loss_of(model)
            loss_of(model).backward()
        found.append(gradients(model))
    assert gap(*found) < 1e-3


def test_the_figures_are_of_the_batch_that_the_last_forward_used() -> None:
    _, ours = twins(use_cayley_neumann=True, std=0.01)
    rotations: Any = rotations_of(ours)
    assert 0 < rotations.skew_norm() < 0.3
    before = rotations.orthogonality_error(), rotations.skew_norm()
    fill(ours, 0.3)
    assert (rotations.orthogonality_error(), rotations.skew_norm()) == before
    logits_of(ours)
    norms = [
        torch.linalg.matrix_norm(cayley.skew_matrices(parameter.detach(), 16), 2).max().item()
        for parameter in trained(ours).values()
    ]
    assert max(norms) * (1 - 1e-5) <= rotations.skew_norm() <= max(norms) * 8 ** (1 / 128) * (1 + 1e-5)
    errors = [
        cayley.orthogonality_error(cayley.series(cayley.skew_matrices(parameter.detach(), 16), 5)).item()
        for parameter in trained(ours).values()
    ]
    assert rotations.orthogonality_error() == pytest.approx(max(errors), rel=1e-5)
