"""transformers' Trainer, with our batches, metrics and health checks around it."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import PrinterCallback, TrainingArguments
from transformers.trainer_callback import ProgressCallback

from train.config import RunConfig
from train.data.collate import collate
from train.data.template import IGNORED, Sample
from train.device import DeviceChoices
from train.loop.callback import RunCallback
from train.loop.checkpoint import Checkpoint
from train.loop.metrics import Totals
from train.loop.saver import Saver
from train.loop.schedule import schedule_arguments
from train.loop.state import ResumableTrainer
from train.stop import REQUEST


def training_arguments(config: RunConfig, choices: DeviceChoices, scratch: Path) -> TrainingArguments:
    """The recipe in the Trainer's words. Nothing reports anywhere; nothing is saved behind our back."""
    return TrainingArguments(
        output_dir=str(scratch),
        **schedule_arguments(config),
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
        dataloader_pin_memory=choices.pinned_memory.value,
        dataloader_num_workers=0,
    )


class RunTrainer(ResumableTrainer):
    """A Trainer over samples that counts real and target tokens, and saves checkpoints when it is told to.

    The loss is the model's, per target token. `totals`: of whole steps since the last line of metrics;
    `in_step`: of the batches of the step that is under way.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        arguments: TrainingArguments,
        samples: list[Sample],
        eval_samples: dict[str, list[Sample]],
        pad_token_id: int,
        callback: RunCallback,
        saver: Saver,
        start: Checkpoint | None,
    ) -> None:
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=samples,
            eval_dataset=eval_samples or None,
            data_collator=partial(collate, pad_token_id=pad_token_id),
            callbacks=[callback],
        )
        self.remove_callback(PrinterCallback)
        self.remove_callback(ProgressCallback)
        self.callback = callback
        callback.trainer = self
        self.saver = saver
        self.start = start
        self.totals = Totals(**start.content["since_last_metrics"]) if start else Totals()
        self.in_step = Totals()

    def train_to_the_end(self) -> None:
        """Train the steps that are left; after a resume these can be none."""
        if self.start is None:
            self.train()
            return
        self.callback.has_moved = self.start.content["has_moved"]
        if self.start.step < self.start.content["max_steps"]:
            self.train(resume_from_checkpoint=str(self.start.folder))
        else:  # the Trainer would take one more step
            self.saver.gradients.without = set(self.start.content["without_gradient"])

    def evaluate(self, *rest: Any, **named: Any) -> dict[str, float]:
        """Called by the Trainer after the step's line of metrics is written, before its checkpoint."""
        self.callback.evaluator.after_step(self)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, {})
        return {}

    def evaluation_loss(self, name: str) -> float:
        """Mean loss over all target tokens of an evaluation set (nats), whatever the batch size."""
        model: Any = self.model
        model.eval()
        total, count = 0.0, 0
        for batch in self.get_eval_dataloader(name):
            self.stop_if_asked()
            inputs = self._prepare_inputs(batch)
            targets = int((inputs["labels"][:, 1:] != IGNORED).sum())
            # As training computes, also where train() has not wrapped the model yet, or had no step left.
            with torch.no_grad(), self.accelerator.autocast():
                loss: Any = self.compute_loss(model, inputs)
            total += loss.item() * targets
            count += targets
        return total / count

    def training_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], *rest: Any, **named: Any
    ) -> torch.Tensor:
        num_tokens = int(inputs["attention_mask"].sum())
        num_target_tokens = int((inputs["labels"][:, 1:] != IGNORED).sum())
        loss = super().training_step(model, inputs, *rest, **named)
        self.in_step.add(Totals(loss.detach(), 0, num_tokens, num_target_tokens))
        return loss

    def train_seconds(self) -> float:
        """Seconds since training began, those of earlier processes counted in."""
        return time.perf_counter() - self.callback.started

    def end_step(self) -> None:
        """The step's sums are now those of a whole step."""
        self.in_step.num_steps = 1
        self.totals.add(self.in_step)
        self.in_step = Totals()

    def stop_if_asked(self) -> None:
        """Where a signal came: save the last finished step, and raise Stopped."""
        if REQUEST.number is not None and self.state.global_step:
            self.saver.save(self)
        REQUEST.enforce()

    def _save_checkpoint(self, *rest: Any, **named: Any) -> None:
        """Called by the Trainer after the step's line of metrics is written."""
        self.saver.save(self)
        REQUEST.enforce()
