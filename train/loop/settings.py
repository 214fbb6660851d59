"""What a recipe says of steps, learning rate, metrics and checkpoints."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from train.strict import Number, Strict, Whole


class LoopFields(Strict):
    """Fields of a recipe that decide how a run trains."""

    num_train_epochs: Number = Field(3, gt=0, le=100_000)
    max_steps: Whole | None = Field(
        None, ge=1, description="stop after so many steps, whatever num_train_epochs says"
    )
    per_device_train_batch_size: Whole = Field(4, ge=1, le=65_536, description="samples of one forward")
    per_device_tokens: Whole | None = Field(
        None, ge=1, description="tokens of one forward, in place of per_device_train_batch_size"
    )
    packing: Literal["auto", "on", "off"] = Field(
        "auto",
        description="samples of one forward in one row, without padding; auto: where a probe on the model "
        "finds them kept apart; on: or else stop; off: padded to the longest",
    )
    gradient_accumulation_steps: Whole = Field(1, ge=1, le=65_536)
    learning_rate: Number = Field(2e-4, gt=0)
    lr_scheduler_type: Literal["cosine", "linear", "constant", "constant_with_warmup"] = "cosine"
    warmup_steps: Whole = Field(0, ge=0)
    weight_decay: Number = Field(0.0, ge=0)
    max_grad_norm: Number = Field(1.0, gt=0)
    gradient_checkpointing: bool = Field(False, description="less memory, about a third more time")
    auto_batch: bool = Field(
        False, description="out of memory: go on with smaller forwards, then gradient checkpointing"
    )
    seed: Whole = Field(42, ge=0, le=2**32 - 1)
    logging_steps: Whole = Field(1, ge=1, description="a line of metrics every so many steps")
    save_steps: Whole = Field(
        200, ge=1, description="a checkpoint every so many steps, and one after the last step"
    )
    save_total_limit: Whole = Field(3, ge=1, description="so many checkpoints are kept, the newest ones")
    resume: Literal["auto", "never", "weights-only"] = Field(
        "auto",
        description="an output folder with an unfinished run: auto goes on exactly from its newest whole "
        "checkpoint; weights-only also where optimizer or random states are missing; never refuses it",
    )
