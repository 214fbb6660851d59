"""What a recipe says of steps, learning rate, evaluation, metrics and checkpoints."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from train.strict import MANY, Number, Strict, Whole

SCHEDULE_SETTINGS: dict[str, tuple[str, ...]] = {
    "cosine": ("num_cycles",),
    "cosine_with_min_lr": ("min_lr", "min_lr_rate", "num_cycles"),
    "polynomial": ("power", "lr_end"),
    "warmup_stable_decay": ("num_decay_steps", "num_stable_steps", "min_lr_ratio"),
}
"""What `lr_scheduler_kwargs` may hold for each schedule; nothing for the others."""
NEEDED_SETTINGS = {
    "cosine_with_min_lr": ("min_lr_rate", "min_lr"),
    "warmup_stable_decay": ("num_decay_steps",),
}
"""Of these one is due: transformers would stop without it only after data and model are loaded."""
COUNTS = ("num_decay_steps", "num_stable_steps")
LOWEST_RATES = {"polynomial": "lr_end", "cosine_with_min_lr": "min_lr"}
"""The setting of a schedule that its learning rate ends at."""
LR_END = 1e-7
"""Of polynomial in transformers, where no `lr_end` is given."""
MOST = {"num_cycles": 1e6, "min_lr_rate": 1.0, "min_lr_ratio": 1.0, **dict.fromkeys(COUNTS, float(MANY))}
"""The largest value of a setting: no more cycles than steps, no lowest rate above the highest."""


def _switch(value: Any) -> Any:
    """YAML reads on and off as booleans."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


def _off(value: Any) -> Any:
    return "off" if value is False else value  # YAML reads off as false


class LoopFields(Strict):
    """Fields of a recipe that decide how a run trains."""

    num_train_epochs: Number = Field(3, gt=0, le=100_000, description="passes over the training rows")
    max_steps: Whole | None = Field(
        None, ge=1, le=MANY, description="stop after so many steps, whatever num_train_epochs says"
    )
    per_device_train_batch_size: Whole = Field(4, ge=1, le=65_536, description="samples of one forward")
    per_device_tokens: Whole | None = Field(
        None, ge=1, le=MANY, description="tokens of one forward, in place of per_device_train_batch_size"
    )
    packing: Annotated[Literal["auto", "on", "off"], BeforeValidator(_switch)] = Field(
        "auto",
        description="samples of one forward in one row, without padding; auto: where a probe on the model "
        "finds them kept apart; on: or else stop; off: padded to the longest",
    )
    gradient_accumulation_steps: Whole = Field(
        1, ge=1, le=65_536, description="batches whose gradients make one step"
    )
    learning_rate: Number = Field(2e-4, gt=0, description="highest learning rate of the schedule")
    lr_scale_with_world_size: Annotated[Literal["off", "linear"], BeforeValidator(_off)] = Field(
        "off", description="linear: learning_rate is for one device and is multiplied by their number"
    )
    lr_scheduler_type: Literal[
        "cosine",
        "linear",
        "constant",
        "constant_with_warmup",
        "cosine_with_min_lr",
        "polynomial",
        "warmup_stable_decay",
    ] = Field("cosine", description="how the learning rate goes after warmup, in transformers' words")
    lr_scheduler_kwargs: dict[str, Number] = Field(
        {},
        description="numbers of the schedule, for example {min_lr_rate: 0.1} for cosine_with_min_lr",
    )
    warmup_steps: Whole = Field(
        0, ge=0, le=MANY, description="steps in which the learning rate rises from zero"
    )
    warmup_ratio: Number | None = Field(
        None, ge=0, lt=1, description="warmup as a share of all steps, in place of warmup_steps"
    )
    weight_decay: Number = Field(0.0, ge=0, description="AdamW's decay of the adapter's matrices")
    adam_beta1: Number = Field(0.9, ge=0, lt=1, description="AdamW's memory of gradients")
    adam_beta2: Number = Field(0.999, ge=0, lt=1, description="AdamW's memory of squared gradients")
    adam_epsilon: Number = Field(1e-8, gt=0, description="AdamW's guard against a division by zero")
    max_grad_norm: Number = Field(1.0, gt=0, description="gradients above this norm are scaled down to it")
    gradient_checkpointing: bool = Field(False, description="less memory, about a third more time")
    fsdp: Annotated[Literal["off", "full"], BeforeValidator(_off)] = Field(
        "off",
        description="full: for models that do not fit on one device, frozen weights are spread over all "
        "processes and gathered layer by layer",
    )
    auto_batch: bool = Field(
        False, description="out of memory: go on with smaller forwards, then gradient checkpointing"
    )
    seed: Whole = Field(42, ge=0, le=2**32 - 1, description="of first weights, order of rows and dropout")
    logging_steps: Whole = Field(1, ge=1, le=MANY, description="a line of metrics every so many steps")
    eval_steps: Annotated[Whole, Field(ge=1, le=MANY)] | Literal["epoch"] = Field(
        "epoch",
        description="the evaluation loss every so many steps, or after each epoch; always after the last "
        "step. Needs eval_data",
    )
    keep_best: bool = Field(
        False, description="the adapter of the lowest evaluation loss is the result, not the last one"
    )
    best_by: str | None = Field(
        None, description="the set of eval_data that keep_best and early stopping go by; the first one"
    )
    early_stopping_patience: Whole | None = Field(
        None,
        ge=1,
        le=MANY,
        description="stop after so many evaluations in a row that are no better than the best",
    )
    early_stopping_threshold: Number = Field(
        0.0, ge=0, description="an evaluation counts as better where its loss is lower by more than this"
    )
    tensorboard: bool = Field(False, description="the figures of metrics.jsonl in tensorboard/ as well")
    telemetry_seconds: Number = Field(
        10.0,
        ge=0,
        le=86_400,
        description="a sample of each card's power, temperature, utilisation and memory in metrics.jsonl "
        "every so many seconds; 0: none",
    )
    save_steps: Whole = Field(
        200, ge=1, le=MANY, description="a checkpoint every so many steps, and one after the last step"
    )
    save_total_limit: Whole = Field(
        3,
        ge=1,
        le=MANY,
        description="so many checkpoints are kept, the newest ones; with keep_best the best one too",
    )
    step_timeout_seconds: Number = Field(
        1800,
        ge=0,
        description="where a step does not end within so many seconds the run hangs: the stacks of all "
        "threads are kept and it ends with exit 70; 0: never. The first step and a checkpoint may take four "
        "times as long, each batch of an evaluation twice",
    )
    resume: Literal["auto", "never", "weights-only"] = Field(
        "auto",
        description="an output folder with an unfinished run: auto goes on exactly from its newest whole "
        "checkpoint; weights-only also where optimizer or random states are missing; never refuses it",
    )

    def loop_faults(self, eval_names: Collection[str]) -> list[str]:
        """Settings that rule each other out, or do nothing beside the others.

        `eval_names`: the names of the evaluation sets, none where there is no eval_data.
        """
        return [*self._schedule_faults(), *self._evaluation_faults(eval_names)]

    def _schedule_faults(self) -> list[str]:
        kind, given, faults = self.lr_scheduler_type, self.lr_scheduler_kwargs, []
        if self.warmup_ratio is not None and self.warmup_steps:
            faults.append(
                f"warmup_steps {self.warmup_steps} and warmup_ratio {self.warmup_ratio} are both given: "
                "one follows from the other"
            )
        if kind == "constant" and (self.warmup_steps or self.warmup_ratio):
            name = "warmup_steps" if self.warmup_steps else "warmup_ratio"
            faults.append(
                f"{name} {getattr(self, name)} has no effect: lr_scheduler_type is constant; "
                "constant_with_warmup warms up"
            )
        known = SCHEDULE_SETTINGS.get(kind, ())
        for name in sorted(given.keys() - set(known)):
            near = difflib.get_close_matches(name, known, n=1)
            meant = f"did you mean {near[0]}?" if near else f"it has {', '.join(known) or 'none'}"
            faults.append(f"lr_scheduler_kwargs.{name}: is no setting of {kind}; {meant}")
        due = NEEDED_SETTINGS.get(kind, ())
        if due and len(given.keys() & set(due)) != 1:
            faults.append(
                f"lr_scheduler_kwargs: {kind} needs {' or '.join(due)}{', not both' * (len(due) - 1)}"
            )
        faults += [
            f"lr_scheduler_kwargs.{name}: {value} is negative or no whole number of steps"
            for name, value in given.items()
            if value < 0 or (name in COUNTS and not value.is_integer())
        ]
        faults += [
            f"lr_scheduler_kwargs.{name}: {value:g} is more than {MOST[name]:g}"
            for name, value in given.items()
            if value > MOST.get(name, value)
        ]
        scaled = self.lr_scale_with_world_size == "linear"
        return faults + ([] if scaled else self.rate_faults(self.learning_rate))

    def rate_faults(self, highest: float) -> list[str]:
        """A lowest learning rate that is none beside the highest, which linear scaling makes larger."""
        name = LOWEST_RATES.get(self.lr_scheduler_type, "")
        default = LR_END if name == "lr_end" else 0.0
        lowest = self.lr_scheduler_kwargs.get(name, default)
        if lowest < highest:
            return []
        whose = "" if name in self.lr_scheduler_kwargs else f" ({self.lr_scheduler_type}'s own)"
        return [f"lr_scheduler_kwargs.{name}: {lowest:g}{whose} is not below learning_rate {highest:g}"]

    def _evaluation_faults(self, eval_names: Collection[str]) -> list[str]:
        given, faults = self.model_fields_set, []
        asked = {
            "eval_steps": "eval_steps" in given,
            "keep_best": self.keep_best,
            "best_by": self.best_by is not None,
            "early_stopping_patience": self.early_stopping_patience is not None,
        }
        if not eval_names:
            faults += [
                f"{name} {getattr(self, name)} needs eval_data, and none is given"
                for name, is_asked in asked.items()
                if is_asked
            ]
        elif self.best_by is not None and self.best_by not in eval_names:
            faults.append(f"best_by: eval_data has no set {self.best_by}; it has {', '.join(eval_names)}")
        if self.best_by is not None and not self.keep_best and self.early_stopping_patience is None:
            faults.append(
                f"best_by {self.best_by} has no effect without keep_best or early_stopping_patience"
            )
        if "early_stopping_threshold" in given and self.early_stopping_patience is None:
            faults.append("early_stopping_threshold has no effect without early_stopping_patience")
        return faults
