"""The recipe in the words of transformers' Trainer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from train.config import RunConfig
from train.device import DeviceChoices
from train.loop.lines import say
from train.loop.schedule import schedule_arguments

FUSED_IS_TORCH_S = ("cpu", "cuda")
"""Device types whose fused optimizers are torch's own code."""
FOREIGN = ("ACCELERATE_", "FSDP_")
"""Beginnings of the variables by which `accelerate launch` sets precision, sharding and more."""
_BY_LIBRARY: dict[str, str] = {}
"""Those that transformers 4.57 sets by itself for a run: the next run drops them without a note."""


def training_arguments(
    config: RunConfig, choices: DeviceChoices, scratch: Path, may_skip_tensors: bool = False
) -> TrainingArguments:
    """The recipe in the Trainer's words. Nothing reports anywhere; nothing is saved behind our back.

    may_skip_tensors: whether a trained tensor can be without a gradient in a step.
    """
    drop_foreign_settings()
    arguments = TrainingArguments(
        output_dir=str(scratch),
        **schedule_arguments(config),
        **optimizer_arguments(choices),
        per_device_train_batch_size=config.per_device_train_batch_size,
        per_device_eval_batch_size=config.per_device_train_batch_size,
        gradient_checkpointing=config.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False} if config.gradient_checkpointing else None,
        seed=config.seed,
        data_seed=config.seed,
        logging_strategy="steps",
        logging_steps=config.logging_steps,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        save_strategy="no",  # train/loop/saver.py says when: the Trainer's own folders can be half written
        eval_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=["labels"],  # a PEFT wrapper hides the forward signature that the Trainer would read
        use_cpu=choices.device.value == "cpu",
        bf16=choices.precision.value == "bf16",
        fp16=choices.precision.value == "fp16",
        ddp_backend=choices.process_group.value,
        dataloader_pin_memory=choices.pinned_memory.value,
        dataloader_num_workers=0,
        # An expert that no token was sent to has no gradient; looking for such tensors costs each step.
        ddp_find_unused_parameters=may_skip_tensors,
    )
    _BY_LIBRARY.update(_foreign_settings())
    # Several devices in one process would be torch's DataParallel: a packed row cannot be cut for it.
    arguments._n_gpu = min(1, arguments.n_gpu)
    return arguments


def drop_foreign_settings() -> None:
    """Take accelerate's own variables out of this process, and say which: it would let them win where the
    recipe says no (`ACCELERATE_MIXED_PRECISION=bf16` over `precision: fp32`), without a word.
    """
    found = _foreign_settings()
    for name in found:
        del os.environ[name]
    if told := sorted(name for name, value in found.items() if _BY_LIBRARY.get(name) != value):
        say([f"note: {', '.join(told)}: not heeded, the recipe alone decides"])


def _foreign_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(FOREIGN)}


def optimizer_arguments(choices: DeviceChoices) -> dict[str, Any]:
    """Which AdamW: the library's default, fused where torch has it, or the plain one where that is not safe.

    torch leaves the skip of an overflowed fp16 step to a fused kernel, and nobody learns of it; another
    device's kernel may not know of skips at all, and then writes NaN into the weights (op-plugin's
    `_fused_adamw_`, up to its v2.10).
    """
    knows = choices.device.value.partition(":")[0] in FUSED_IS_TORCH_S
    return {} if knows and choices.precision.value != "fp16" else {"optim": "adamw_torch"}


def begin_loss_scale(accelerator: Any, choices: DeviceChoices) -> None:
    """Start fp16's loss scale at the value of the choices; a scale that is not dynamic stays there."""
    scaler = getattr(accelerator, "scaler", None)
    if scaler is None or choices.loss_scale.value is None:
        return
    scale = choices.loss_scale.value
    still = {} if scale["dynamic"] else {"growth_factor": 1.0, "backoff_factor": 1.0}
    scaler.load_state_dict(scaler.state_dict() | {"scale": float(scale["initial"])} | still)
