"""fp16's loss scale starts where the device policy or the recipe says, and a resumed one goes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from device_faults import asked

from train.device import choose
from train.loop.arguments import begin_loss_scale


def scaler_after(scale: Any, precision: str = "fp16") -> torch.amp.GradScaler:
    scaler = torch.amp.GradScaler("cpu")
    begin_loss_scale(
        SimpleNamespace(scaler=scaler), choose(asked(precision=precision, loss_scale=scale), None)
    )
    return scaler


@pytest.mark.parametrize(("scale", "begins"), [("auto", 65536.0), (256.0, 256.0)])
def test_a_scale_begins_at_its_value_and_halves_where_gradients_overflow(scale: Any, begins: float) -> None:
    scaler = scaler_after(scale)
    assert scaler.get_scale() == begins
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler.scale(weight.sum() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert (scaler.get_scale(), weight.item()) == (begins / 2, 1.0)


def test_without_a_scaler_or_without_fp16_nothing_is_scaled() -> None:
    begin_loss_scale(SimpleNamespace(scaler=None), choose(asked(precision="fp16"), None))
    assert scaler_after("auto", "bf16").get_scale() == torch.amp.GradScaler("cpu").get_scale()
