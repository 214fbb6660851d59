"""A copy of a batched LoRA model computes for itself, and batching again changes nothing."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lora_twins import twins
from oft_twins import (
    fill,
    gap,
    gradients,
    layer,
    logits_of,
    loss_of,
)

from train.adapters import attach
from train.adapters.lora_layer import factors_of


def deep_copied(model: Any) -> Any:
    return copy.deepcopy(model)


def saved_by_torch(model: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


@pytest.mark.parametrize("copied", [deep_copied, saved_by_torch])
@pytest.mark.parametrize("after", ["nothing", "a forward", "a step"])
def test_a_copy_lives_a_life_of_its_own(copied: Callable[[Any], Any], after: str) -> None:
    plain, ours = twins()
    if after != "nothing":
        loss = loss_of(ours)
        if after == "a step":
            loss.backward()
    before = logits_of(ours)

    twin = copied(ours)

    assert factors_of(twin) is not None and factors_of(twin) is not factors_of(ours)
    for model in (plain, twin):
        fill(model, 0.2, seed=4)
        model.zero_grad()
        loss_of(model).backward()
    assert gap(gradients(plain), gradients(twin)) < 1e-6
    assert torch.equal(logits_of(ours), before)


def test_a_copy_made_within_a_forward_is_not_within_one() -> None:
    plain, ours = twins()
    copies: list[Any] = []
    hook = layer(ours, "o_proj").register_forward_pre_hook(lambda *_: copies.append(copy.deepcopy(ours)))
    loss_of(ours)
    hook.remove()
    x = torch.ones(3, 64)

    for model in (plain, copies[0]):
        layer(model, "down_proj", 1)(torch.ones(3, 96))
        fill(model, 0.2, seed=4)
    found = [layer(model, "k_proj", 1)(x) for model in (plain, copies[0])]

    assert (found[0] - found[1]).abs().max() < 1e-6


def test_batching_twice_hooks_once() -> None:
    _, ours = twins()
    attach.batched(ours)
    assert (len(ours._forward_pre_hooks), len(ours._forward_hooks)) == (1, 1)
