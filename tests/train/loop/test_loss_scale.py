"""fp16's loss scale starts where the device policy or the recipe says, and a resumed one goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from device_faults import asked
from transformers import Trainer, TrainingArguments

from train.device import choose
from train.loop.arguments import begin_loss_scale, optimizer_arguments
from train.loop.state import ResumableTrainer


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


@pytest.mark.parametrize(("precision", "plain"), [("fp16", True), ("bf16", False), ("fp32", False)])
def test_the_skip_of_an_overflowed_step_is_the_scaler_s_own(
    tmp_path: Path, precision: str, plain: bool
) -> None:
    """A fused kernel skips by itself, if it knows how, and nobody learns of it."""
    choices = choose(asked(precision=precision), None)
    assert optimizer_arguments(choices) == ({"optim": "adamw_torch"} if plain else {})
    other = replace(choices, device=replace(choices.device, value="npu:0"))
    assert optimizer_arguments(other) == {"optim": "adamw_torch"}
    weight = torch.nn.Parameter(torch.ones(1))
    arguments = TrainingArguments(output_dir=str(tmp_path), use_cpu=True, **optimizer_arguments(other))
    kind, named = Trainer.get_optimizer_cls_and_kwargs(arguments)
    assert not kind([weight], **named).param_groups[0].get("fused")


@pytest.mark.parametrize("fused", [True, False])
def test_a_resumed_optimizer_computes_as_this_process_chose(tmp_path: Path, fused: bool) -> None:
    """The checkpoint may be of another device, or of a version that chose otherwise."""

    def trainer(fused: bool) -> ResumableTrainer:
        made = ResumableTrainer.__new__(ResumableTrainer)
        made.optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(2))], fused=fused)
        made.lr_scheduler = torch.optim.lr_scheduler.ConstantLR(made.optimizer)
        return made

    before, after = trainer(not fused), trainer(fused)
    for one in before.optimizer.param_groups[0]["params"]:
        one.grad = torch.ones(2)
    before.optimizer.step()
    torch.save(before.optimizer.state_dict(), tmp_path / "optimizer.pt")
    torch.save(before.lr_scheduler.state_dict(), tmp_path / "scheduler.pt")
    after.start = SimpleNamespace(folder=tmp_path, missing=(), is_weights_only=False, step=1)  # type: ignore[assignment]
    after._load_optimizer_and_scheduler("")
    assert bool(after.optimizer.param_groups[0]["fused"]) is fused
    (state,) = after.optimizer.state.values()
    assert torch.equal(state["exp_avg"], torch.full((2,), 0.1))
    after.optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
    after.optimizer.step()
