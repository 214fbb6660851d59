"""transformers' Trainer, with our batches, metrics and health checks around it."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import ProgressCallback

from train.config import RunConfig
from train.data.collate import collate
from train.data.template import IGNORED, Sample
from train.device import DeviceChoices
from train.loop.health import GradientCheck, require_finite
from train.loop.metrics import MetricsFile, StepMetrics, peak_memory_bytes


def training_arguments(config: RunConfig, choices: DeviceChoices, scratch: Path) -> TrainingArguments:
    """The recipe in the Trainer's words. Nothing reports anywhere; nothing is saved behind our back."""
    return TrainingArguments(
        output_dir=str(scratch),
        num_train_epochs=config.num_train_epochs,
        max_steps=config.max_steps or -1,
        per_device_train_batch_size=config.per_device_train_batch_size,
        per_device_eval_batch_size=config.per_device_train_batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.lr_scheduler_type,
        warmup_steps=config.warmup_steps,
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        gradient_checkpointing=config.gradient_checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False} if config.gradient_checkpointing else None,
        seed=config.seed,
        data_seed=config.seed,
        logging_strategy="steps",
        logging_steps=config.logging_steps,
        logging_first_step=True,
        logging_nan_inf_filter=False,
        save_strategy="no",
        eval_strategy="no",
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        label_names=["labels"],  # a PEFT wrapper hides the forward signature that the Trainer would read
        use_cpu=choices.device.value == "cpu",
        bf16=choices.precision.value == "bf16",
        fp16=choices.precision.value == "fp16",
        dataloader_pin_memory=choices.pinned_memory.value,
        dataloader_num_workers=0,
    )


class RunTrainer(Trainer):
    """A Trainer over samples that counts real and target tokens.

    The loss is the model's, per target token.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        arguments: TrainingArguments,
        samples: list[Sample],
        eval_samples: list[Sample] | None,
        pad_token_id: int,
        callback: TrainerCallback,
    ) -> None:
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=samples,
            eval_dataset=eval_samples,
            data_collator=partial(collate, pad_token_id=pad_token_id),
            callbacks=[callback],
        )
        self.remove_callback(PrinterCallback)
        self.remove_callback(ProgressCallback)
        self.num_tokens = 0
        self.num_target_tokens = 0

    def evaluation_loss(self) -> float:
        """Mean loss over all target tokens of the evaluation samples (nats), whatever the batch size."""
        model: Any = self.model
        model.eval()
        total, count = 0.0, 0
        for batch in self.get_eval_dataloader():
            inputs = self._prepare_inputs(batch)
            targets = int((inputs["labels"][:, 1:] != IGNORED).sum())
            with torch.no_grad():
                loss: Any = self.compute_loss(model, inputs)
            total += loss.item() * targets
            count += targets
        return total / count

    def training_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], *rest: Any, **named: Any
    ) -> torch.Tensor:
        self.num_tokens += int(inputs["attention_mask"].sum())
        self.num_target_tokens += int((inputs["labels"][:, 1:] != IGNORED).sum())
        return super().training_step(model, inputs, *rest, **named)


class RunCallback(TrainerCallback):
    """Writes metrics and holds the health checks of each step."""

    def __init__(self, metrics: MetricsFile, gradients: GradientCheck, choices: DeviceChoices) -> None:
        self.metrics = metrics
        self.gradients = gradients
        self.device_type = choices.device.value
        # A dynamic loss scale finds its size by overflowing: such a step is skipped, not wrong.
        self.scaled = choices.precision.value == "fp16"
        self.trainer: RunTrainer | None = None
        self.has_moved = False
        self.started = time.perf_counter()

    def on_train_begin(self, *rest: Any, **named: Any) -> None:
        self.started = time.perf_counter()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        if self.gradients.without:
            self.gradients.look()
            if self.has_moved:
                self.gradients.enforce()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        skipped = self.trainer is not None and self.trainer.accelerator.optimizer_step_was_skipped
        if named["optimizer"].param_groups[0]["lr"] > 0 and not skipped:
            self.has_moved = True

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        if state.global_step >= state.max_steps:
            control.should_log = True  # whatever logging_steps says: no step is left out of the figures

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **named: Any
    ) -> None:
        if not logs or "loss" not in logs or self.trainer is None:
            return
        step = StepMetrics(
            step=state.global_step,
            epoch=logs["epoch"],
            loss=logs["loss"],
            learning_rate=logs["learning_rate"],
            grad_norm=float(logs["grad_norm"]),
            num_tokens=self.trainer.num_tokens,
            num_target_tokens=self.trainer.num_target_tokens,
            seconds=time.perf_counter() - self.started,
            peak_memory_bytes=peak_memory_bytes(self.device_type),
        )
        self.trainer.num_tokens = self.trainer.num_target_tokens = 0
        self.metrics.write(step)
        require_finite(step.step, loss=step.loss, grad_norm=0.0 if self.scaled else step.grad_norm)
        print(step_line(step, state.max_steps), flush=True)


def step_line(step: StepMetrics, max_steps: int) -> str:
    """A step in words for the terminal."""
    pace = step.seconds / step.step
    return (
        f"step {step.step}/{max_steps}  loss {step.loss:.4f}  lr {step.learning_rate:.2e}  "
        f"grad norm {step.grad_norm:.3f}  {step.num_target_tokens} target tokens  {pace:.2f} s/step  "
        f"{pace * (max_steps - step.step):.0f} s left"
    )
