"""The recipe's steps, learning rate and optimizer in the Trainer's words, and what they come to."""

from __future__ import annotations

import inspect
from typing import Any

from transformers import TrainerCallback, TrainingArguments

from train.adapters import lora
from train.config import RunConfig
from train.errors import EXIT_CONFIG, UserError
from train.loop.lines import say
from train.loop.manifest import Manifest
from train.loop.processes import environment_size
from train.loop.settings import COUNTS


def world_size() -> int:
    """The number of processes of the run, one per device: torchrun and accelerate say it so."""
    return environment_size()


def learning_rate(config: RunConfig, num_devices: int) -> float:
    """The highest learning rate of a run on so many devices (linear scaling: arXiv 1706.02677)."""
    factor = num_devices if config.lr_scale_with_world_size == "linear" else 1
    return config.learning_rate * factor


def schedule_arguments(config: RunConfig) -> dict[str, Any]:
    """Fields of TrainingArguments for steps, schedule and AdamW's settings.

    UserError (exit 78) where the schedule ends above the rate that scaling made.
    """
    settings = {
        name: int(value) if name in COUNTS else value for name, value in config.lr_scheduler_kwargs.items()
    }
    rate = learning_rate(config, world_size())
    if faults := config.rate_faults(rate):
        raise UserError("\n".join(faults), "a lower one, or a higher learning_rate", EXIT_CONFIG)
    return {
        "num_train_epochs": config.num_train_epochs,
        "max_steps": config.max_steps or -1,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "learning_rate": rate,
        "lr_scheduler_type": config.lr_scheduler_type,
        "lr_scheduler_kwargs": settings,
        **_warmup(config),
        "weight_decay": config.weight_decay,
        "adam_beta1": config.adam_beta1,
        "adam_beta2": config.adam_beta2,
        "adam_epsilon": config.adam_epsilon,
        "max_grad_norm": config.max_grad_norm,
    }


def _warmup(config: RunConfig) -> dict[str, Any]:
    """Warmup in the words of this transformers: from 5.0 a share below 1 is a value of warmup_steps, and
    warmup_ratio, while it is still there, has None as its default.
    """
    if not config.warmup_ratio:
        return {"warmup_steps": config.warmup_steps}
    parameter = inspect.signature(TrainingArguments).parameters.get("warmup_ratio")
    has_ratio = parameter is not None and parameter.default is not None
    return {"warmup_ratio" if has_ratio else "warmup_steps": config.warmup_ratio}


class PlanCallback(TrainerCallback):
    """Says and records what the settings come to, once the number of steps is known."""

    def __init__(self, config: RunConfig, manifest: Manifest) -> None:
        self.config = config
        self.manifest = manifest

    def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        planned = plan(self.config, args, state.max_steps)
        self.manifest.update(plan=planned)
        notes = lora.notes(self.config) if self.config.adapter == "lora" else []
        say([*plan_lines(self.config, planned), *notes])


def plan(config: RunConfig, arguments: TrainingArguments, num_steps: int) -> dict[str, Any]:
    """What the settings come to, for run.json (tokens: at most). `num_steps`: of the whole run."""
    devices = arguments.world_size
    unit, batch = ("tokens", config.per_device_tokens) if config.per_device_tokens else ("samples", None)
    batch = batch or config.per_device_train_batch_size
    return {
        "num_steps": num_steps,
        "num_devices": devices,
        f"{unit}_per_step": batch * config.gradient_accumulation_steps * devices,
        "learning_rate": arguments.learning_rate,
        "lr_scale_with_world_size": config.lr_scale_with_world_size,
        "warmup_steps": int(arguments.get_warmup_steps(num_steps)),
        "optimizer": str(getattr(arguments.optim, "value", arguments.optim)),
    }


def plan_lines(config: RunConfig, planned: dict[str, Any]) -> list[str]:
    """The plan in words."""
    devices, steps, warmup = (planned[name] for name in ("num_devices", "num_steps", "warmup_steps"))
    unit = "tokens" if config.per_device_tokens else "samples"
    batch = config.per_device_tokens or config.per_device_train_batch_size
    return [
        f"a step: {'at most ' if unit == 'tokens' else ''}{batch} {unit} x "
        f"{config.gradient_accumulation_steps} accumulated x {devices} "
        f"{'device' if devices == 1 else 'devices'} = {planned[f'{unit}_per_step']} {unit}; {steps} steps",
        f"learning rate: {planned['learning_rate']:.3g}{_scaling(config, devices)}, "
        f"{config.lr_scheduler_type}{f' after {warmup} steps of warmup' if warmup else ''}; "
        f"{planned['optimizer']}",
        *_too_short(config, steps, warmup),
    ]


def _too_short(config: RunConfig, steps: int, warmup: int) -> list[str]:
    """What to say where a run begins within its decay; of one that ends in its warmup a finding tells."""
    decay = int(config.lr_scheduler_kwargs.get("num_decay_steps", 0))
    if not decay or warmup + decay <= steps:
        return []
    return [
        f"warning: warmup and decay ({warmup} + {decay} steps) are longer than the run of {steps} steps: its "
        "learning rate never reaches the highest; fewer warmup_steps or num_decay_steps"
    ]


def _scaling(config: RunConfig, devices: int) -> str:
    if config.lr_scale_with_world_size == "off":
        return ""
    return f" ({config.learning_rate:.3g} x {devices}, linear in the number of devices)"
