"""The learning rate of each schedule, step by step, and what a run says of its plan."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainingArguments
from transformers.optimization import get_scheduler

from train.config import RunConfig
from train.errors import UserError
from train.loop import schedule

FLAGS = {"adapter": "lora", "model": "m", "data": "d", "output": "o", "learning_rate": 1.0}


def config(**fields: Any) -> RunConfig:
    return RunConfig.model_validate({**FLAGS, **fields})


def arguments(run: RunConfig, folder: Path) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(folder), report_to=[], use_cpu=True, **schedule.schedule_arguments(run)
    )


def rates(run: RunConfig, folder: Path, num_steps: int) -> list[float]:
    """The learning rate of each step."""
    args = arguments(run, folder)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=args.learning_rate)
    scheduler = get_scheduler(
        args.lr_scheduler_type,
        optimizer,
        num_warmup_steps=args.get_warmup_steps(num_steps),
        num_training_steps=num_steps,
        scheduler_specific_kwargs=args.lr_scheduler_kwargs,
    )
    found = []
    for _ in range(num_steps):
        found.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return found


WAVE = [(1 + math.cos(math.pi * step / 10)) / 2 for step in range(10)]
LINE = [1 - step / 10 for step in range(10)]
SHAPES: list[tuple[dict[str, Any], list[float]]] = [
    ({"lr_scheduler_type": "cosine"}, WAVE),
    ({"lr_scheduler_type": "linear"}, LINE),
    ({"lr_scheduler_type": "constant"}, [1.0] * 10),
    ({"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 2}, [0, 0.5] + [1.0] * 8),
    (
        {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}},
        [0.1 + 0.9 * value for value in WAVE],
    ),
    (
        {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"power": 2, "lr_end": 0}},
        [value**2 for value in LINE],
    ),
    (
        {
            "lr_scheduler_type": "warmup_stable_decay",
            "lr_scheduler_kwargs": {"num_decay_steps": 2},
            "warmup_ratio": 0.2,
        },
        [0, 0.5] + [1.0] * 7 + [0.5],
    ),
]


@pytest.mark.parametrize(("fields", "wanted"), SHAPES)
def test_each_schedule_goes_as_its_name_says(
    tmp_path: Path, fields: dict[str, Any], wanted: list[float]
) -> None:
    assert rates(config(**fields), tmp_path, 10) == pytest.approx(wanted, abs=1e-7)


@pytest.mark.parametrize(
    ("fields", "steps"),
    [({"warmup_ratio": 0.1}, 10), ({"warmup_ratio": 0.101}, 11), ({"warmup_steps": 7}, 7), ({}, 0)],
)
def test_warmup_is_a_number_of_steps_or_a_share_rounded_up(
    tmp_path: Path, fields: dict[str, Any], steps: int
) -> None:
    assert arguments(config(**fields), tmp_path).get_warmup_steps(100) == steps


def test_adamw_has_the_numbers_of_the_recipe(tmp_path: Path) -> None:
    fields = {"adam_beta1": 0.8, "adam_beta2": 0.95, "adam_epsilon": 1e-6, "weight_decay": 0.1}
    args = arguments(config(**fields), tmp_path)
    assert {name: getattr(args, name) for name in fields} == fields
    assert str(getattr(args.optim, "value", args.optim)).startswith("adamw_torch")


@pytest.mark.parametrize(("scaling", "rate"), [("off", 1.0), ("linear", 4.0)])
def test_the_learning_rate_is_scaled_by_the_number_of_devices_only_where_asked(
    scaling: str, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    run = config(lr_scale_with_world_size=scaling)
    assert schedule.schedule_arguments(run)["learning_rate"] == rate
    planned = {
        "num_devices": 4, "num_steps": 10, "warmup_steps": 0, "samples_per_step": 16,
        "learning_rate": rate, "optimizer": "adamw",
    }  # fmt: skip
    lines = schedule.plan_lines(run, planned)
    assert lines[0] == "a step: 4 samples x 1 accumulated x 4 devices = 16 samples; 10 steps"
    assert ("(1 x 4, linear in the number of devices)" in lines[1]) == (scaling == "linear")


def test_a_plan_counts_samples_or_tokens(tmp_path: Path) -> None:
    run = config(warmup_steps=9, gradient_accumulation_steps=3, per_device_train_batch_size=2)
    planned = schedule.plan(run, arguments(run, tmp_path), 4)
    assert (planned["samples_per_step"], planned["warmup_steps"], planned["num_devices"]) == (6, 9, 1)
    lines = schedule.plan_lines(run, planned)
    assert lines[0] == "a step: 2 samples x 3 accumulated x 1 device = 6 samples; 4 steps"
    run = config(per_device_tokens=512, gradient_accumulation_steps=2)
    planned = schedule.plan(run, arguments(run, tmp_path), 4)
    assert planned["tokens_per_step"] == 1024 and "samples_per_step" not in planned
    line = schedule.plan_lines(run, planned)[0]
    assert line == "a step: at most 512 tokens x 2 accumulated x 1 device = 1024 tokens; 4 steps"


def test_a_lowest_rate_is_compared_with_what_linear_scaling_made(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"lr_end": 3}}
    run = config(**ends, lr_scale_with_world_size="linear")
    with pytest.raises(UserError, match="lr_end: 3 is not below learning_rate 1") as caught:
        schedule.schedule_arguments(run)
    assert caught.value.exit_code == 78 and caught.value.hint
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("RANK", "0")
    assert schedule.schedule_arguments(run)["learning_rate"] == 4


def test_a_run_shorter_than_its_warmup_and_decay_is_told(tmp_path: Path) -> None:
    decay = {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": {"num_decay_steps": 500}}
    run = config(**decay, warmup_steps=1)
    assert len(schedule.plan_lines(run, schedule.plan(run, arguments(run, tmp_path), 501))) == 2
    assert schedule.plan_lines(run, schedule.plan(run, arguments(run, tmp_path), 2))[2] == (
        "warning: warmup and decay (1 + 500 steps) are longer than the run of 2 steps: its learning rate "
        "never reaches the highest; fewer warmup_steps or num_decay_steps"
    )
    run = config(warmup_steps=9)
    assert len(schedule.plan_lines(run, schedule.plan(run, arguments(run, tmp_path), 4))) == 2


def test_a_world_size_without_a_rank_is_that_of_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("8", ""):
        monkeypatch.setenv("WORLD_SIZE", value)
        assert schedule.world_size() == 1
