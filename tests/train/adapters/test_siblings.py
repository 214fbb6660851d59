"""Layers that read one input are served by one computation, and never by another input's."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from train.adapters.siblings import SharedInput, group_siblings, product_dtype, versions


class Double:
    """Counts how often two parts are made of an input: the input, and its negative."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        self.count += 1
        return x * 1, -x


def take(shared: SharedInput, compute: Double, member: int, x: torch.Tensor, stamp: object = "s") -> Any:
    return shared.part(member, x, stamp, compute)


def test_names_of_one_parent_and_one_row_are_one_group_and_each_layer_is_in_one() -> None:
    names = [f"model.layers.{n}.self_attn.{p}_proj" for n in range(2) for p in "qkvo"]
    names += ["model.layers.0.mlp.gate_proj", "model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj"]
    names += ["lm_head", "visual.blocks.0.attn.qkv", "x.in_proj_qkv", "x.in_proj_a", "x.in_proj_ba"]
    groups = group_siblings({name: name for name in names}, alike=lambda layer: 0)
    assert sorted(name for group in groups for name in group) == sorted(names)
    assert [[name.rpartition(".")[2] for name in group] for group in groups if len(group) > 1] == [
        ["q_proj", "k_proj", "v_proj"],
        ["q_proj", "k_proj", "v_proj"],
        ["gate_proj", "up_proj"],
        ["in_proj_qkv", "in_proj_a"],
    ]


def test_layers_that_differ_are_no_siblings() -> None:
    layers = {"a.q_proj": 1, "a.k_proj": 2, "a.v_proj": 1}
    assert group_siblings(layers, alike=lambda layer: layer) == [[1, 1], [2]]


def test_one_computation_serves_every_member_once() -> None:
    shared, compute, x = SharedInput(), Double(), torch.ones(3)
    assert torch.equal(take(shared, compute, 1, x), -x)
    assert torch.equal(take(shared, compute, 0, x), x)
    assert compute.count == 1
    take(shared, compute, 0, x)
    assert compute.count == 2


def test_a_member_that_asks_twice_gets_a_new_computation() -> None:
    shared, compute, x = SharedInput(), Double(), torch.ones(3)
    take(shared, compute, 0, x)
    take(shared, compute, 0, x)
    assert compute.count == 2


def test_another_input_of_equal_values_is_another_input() -> None:
    shared, compute = SharedInput(), Double()
    take(shared, compute, 0, torch.ones(3))
    take(shared, compute, 1, torch.ones(3))
    assert compute.count == 2


@pytest.mark.parametrize("change", ["in place", "stamp", "gradients", "autocast"])
def test_whatever_changes_the_result_makes_it_another_input(change: str) -> None:
    shared, compute, x = SharedInput(), Double(), torch.ones(3)
    take(shared, compute, 0, x, stamp="before")
    if change == "in place":
        x.view(-1).mul_(2)
    context: Any = {"gradients": torch.no_grad(), "autocast": torch.autocast("cpu", torch.bfloat16)}
    with context.get(change, nullcontext()):
        part = take(shared, compute, 1, x, stamp="after" if change == "stamp" else "before")
    assert compute.count == 2
    assert torch.equal(part, -x)


def test_inputs_of_inference_mode_are_served() -> None:
    shared, compute = SharedInput(), Double()
    with torch.inference_mode():
        x = torch.ones(3)
        take(shared, compute, 0, x)
        assert torch.equal(take(shared, compute, 1, x), -x)
    assert compute.count == 1


def test_a_call_that_comes_between_never_takes_or_leaves_the_wrong_part() -> None:
    shared, x, other = SharedInput(), torch.ones(3), torch.full((3,), 5.0)
    seen = []

    def interrupted(inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        seen.append(shared.part(0, other, "s", Double()))  # as another thread would, in the middle
        return inputs * 1, -inputs

    assert torch.equal(shared.part(0, x, "s", interrupted), x)
    assert torch.equal(seen[0], other)
    assert torch.equal(shared.part(1, other, "s", Double()), -other)
    assert torch.equal(shared.part(1, x, "s", Double()), -x)


@pytest.mark.parametrize("release", ["taken", "cleared"])
def test_nothing_is_held_when_all_is_taken_or_cleared(release: str) -> None:
    shared, compute, x = SharedInput(), Double(), torch.ones(3)
    held = weakref.ref(x)
    take(shared, compute, 0, x)
    if release == "taken":
        take(shared, compute, 1, x)
    gc.disable()  # no cycle may be what holds it
    try:
        del x
        if release == "cleared":
            assert held() is not None
            shared.clear()
        assert held() is None
    finally:
        gc.enable()


def test_a_copy_starts_empty() -> None:
    shared, compute, x = SharedInput(), Double(), torch.ones(3, requires_grad=True) * 2
    take(shared, compute, 0, x)
    twin = copy.deepcopy(shared)
    take(twin, compute, 1, x)
    assert compute.count == 2


def test_versions_tell_a_change_in_place_and_another_place() -> None:
    tensor = torch.ones(3)
    before = versions([tensor])
    assert versions([tensor]) == before
    tensor.add_(1)
    assert versions([tensor]) != before
    assert versions([tensor.clone()]) != versions([tensor])
    with torch.inference_mode():
        assert versions([torch.ones(2)])[0][1] == -1


def test_the_dtype_of_a_product_is_autocasts_where_that_is_on() -> None:
    x = torch.ones(2, dtype=torch.float16)
    assert product_dtype(x) == torch.float16
    with torch.autocast("cpu", torch.bfloat16):
        assert product_dtype(x) == torch.bfloat16
