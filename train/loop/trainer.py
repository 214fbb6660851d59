"""transformers' Trainer, with our batches, metrics and health checks around it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import PrinterCallback, TrainingArguments, set_seed
from transformers.trainer_callback import ProgressCallback

from train.data.packing import NUM_PLANS, Budget, EpochBatches, in_order
from train.data.template import Sample
from train.loop.callback import RunCallback
from train.loop.checkpoint import Checkpoint
from train.loop.loss import TargetLoss, target_loss
from train.loop.memory import MemoryGuard
from train.loop.metrics import Totals
from train.loop.packed import (
    batch_of,
    choose_packing,
    forward_context,
    require_same_batches,
    set_method,
    split_batch,
)
from train.loop.saver import Saver
from train.loop.state import ResumableTrainer, set_random_states
from train.stop import REQUEST


class RunTrainer(ResumableTrainer):
    """A Trainer over samples that counts real and target tokens, and saves checkpoints when it is told to.

    The loss of a step is the sum over its target tokens, of all its batches and ranks, by their number.
    `packing`: how the samples of a batch are kept apart, and why. `totals`: of whole steps since the last
    line of metrics; `in_step`: of the batches of the step that is under way, which are `batches`.
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
        core: Any = model
        super().__init__(
            model=model,
            args=arguments,
            train_dataset=samples,
            eval_dataset=eval_samples or None,
            callbacks=[callback],
        )
        if self.args.process_index:  # the Trainer seeds all alike: dropout would draw the same everywhere
            set_seed(self.args.seed + self.args.process_index)
        self.remove_callback(PrinterCallback)
        self.remove_callback(ProgressCallback)
        self.callback = callback
        callback.trainer = self
        self.saver = saver
        self.start = start
        self.totals = Totals(**start.content["since_last_metrics"]) if start else Totals()
        self.in_step = Totals()
        self.has_agreed_to_stop = False
        self.memory = MemoryGuard(saver.config, start.content.get("memory") if start else None)
        self.batches: list[dict[str, Any]] = []
        # compute_loss divides by the target tokens of the whole step.
        self.model_accepts_loss_kwargs = self.loss_is_scaled_for_ga = True
        config = saver.config
        attention = core.config._attn_implementation
        self.packing = choose_packing(config.packing, core, attention, self._agree, self.accelerator.autocast)
        set_method(core, self.packing.value, attention)
        require_same_batches(self.packing.value, start, config.per_device_tokens)
        saver.facts["packing"] = self.packing.value
        self.collate = partial(batch_of, filler_id=pad_token_id, method=self.packing.value)
        is_packed = self.packing.value != "padded"
        self.budget = Budget(config.per_device_train_batch_size, config.per_device_tokens, is_packed)

    def batch_lines(self) -> list[str]:
        """How samples are batched, in words."""
        batches = len(self.get_train_dataloader())
        size = f"{self.budget.tokens} tokens" if self.budget.tokens else f"{self.budget.samples} samples"
        note = []
        if getattr(getattr(self.model, "config", None), "output_router_logits", False):
            note = ["note: output_router_logits is on: the model's own loss of its experts' balance is added"]
        if self.saver.config.auto_batch and self.args.world_size > 1:
            note.append("note: auto_batch acts in runs of one process: out of memory stops this one")
        given = self.saver.config.model_fields_set
        if {"per_device_tokens", "per_device_train_batch_size"} <= given and self.budget.tokens:
            samples = self.budget.samples
            note.append(
                f"note: per_device_tokens decides, per_device_train_batch_size {samples} has no effect"
            )
        return [
            f"packing: {self.packing.value} ({self.packing.reason})",
            f"batches: at most {size} of one forward, {batches} batches per device and epoch",
            *note,
        ]

    def _agree(self, yes: bool) -> bool:
        """Whether all ranks say yes."""
        return self._sum(0 if yes else 1)[0] == 0

    def _sum(self, *figures: float) -> list[float]:
        """Each figure's sum over all ranks."""
        if self.args.world_size == 1:
            return list(figures)
        mine = torch.tensor(figures, dtype=torch.float32, device=self.args.device)
        return self.accelerator.reduce(mine, "sum").tolist()

    def get_train_dataloader(self) -> DataLoader:
        """This rank's batches of each epoch; accelerate would deal out single samples."""
        samples: Any = self.train_dataset
        args = self.args
        batches = EpochBatches(
            [len(sample.input_ids) for sample in samples],
            self.budget,
            args.seed,
            lambda: int(self.state.epoch or 0),
            args.process_index,
            args.world_size,
            args.num_train_epochs if args.max_steps < 0 else NUM_PLANS,
        )
        return DataLoader(
            samples,
            batch_sampler=batches,
            collate_fn=self.collate,
            pin_memory=args.dataloader_pin_memory,
            generator=torch.Generator().manual_seed(args.seed),  # or it draws from the one that dropout uses
        )

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, *rest: Any, **named: Any
    ) -> tuple[list[Any], Any]:
        """The batches of a step on this rank, and the target tokens of the step on all ranks."""
        batches = list(islice(epoch_iterator, num_batches))
        return batches, max(1.0, self._sum(sum(batch["num_target_tokens"] for batch in batches))[0])

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """This batch's part of the step's loss; the mean over all ranks, as DDP takes it, makes their sum."""
        found = self._loss(model, inputs)
        loss = found.total * (self.args.world_size / num_items_in_batch)
        if found.auxiliary is not None:
            loss = loss + found.auxiliary / self.current_gradient_accumulation_steps
        return loss

    def _loss(self, model: Any, inputs: dict[str, Any]) -> TargetLoss:
        inputs, labels = split_batch(inputs, self.packing.value)
        with forward_context(self.packing.value):
            return target_loss(model, self.model, inputs, labels)

    def floating_point_ops(self, inputs: Any) -> int:
        """Not counted: the Trainer would walk all parameters in each batch."""
        return 0

    def train_to_the_end(self) -> None:
        """Train the steps that are left; after a resume these can be none."""
        with self.memory.told(self):
            self._train_steps()

    def _train_steps(self) -> None:
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
        self.callback.watchdog.allow("step")
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, {})
        return {}

    def evaluation_loss(self, name: str) -> float:
        """Mean loss over all target tokens of an evaluation set (nats), whatever the batch size."""
        model: Any = self.model
        model.eval()
        total, count = 0.0, 0.0
        sets: Any = self.eval_dataset
        samples = sets[name]
        rows = in_order([len(sample.input_ids) for sample in samples], self.budget)
        own = rows[self.args.process_index :: self.args.world_size]
        for turn in range(-(-len(rows) // self.args.world_size)):  # all ranks ask equally often
            self.callback.watchdog.allow("evaluation")
            self.stop_if_asked()
            is_own = turn < len(own)
            if not is_own and self.saver.config.fsdp == "off":
                continue
            row = own[turn] if is_own else rows[0]  # spread weights are gathered by all ranks together
            inputs: Any = self._prepare_inputs(self.collate([samples[index] for index in row]))
            found = self.memory.compute(
                self, "evaluation", [inputs], partial(self._evaluated, model), partial(list, [inputs])
            )
            total += is_own * sum(loss for loss, _ in found)
            count += is_own * sum(targets for _, targets in found)
        total, count = self._sum(total, count)
        return total / count

    def _evaluated(self, model: Any, inputs: dict[str, Any]) -> tuple[float, int]:
        """The loss of a batch summed over its target tokens, and how many these are."""
        # As training computes, also where train() has not wrapped the model yet, or had no step left.
        with torch.no_grad(), self.accelerator.autocast():
            return self._loss(model, inputs).total.item(), inputs["num_target_tokens"]

    def training_step(
        self, model: torch.nn.Module, inputs: dict[str, Any], *rest: Any, **named: Any
    ) -> torch.Tensor:
        if not self.batches and not self.saver.states:  # the first step of this process
            self.saver.note_states(self.callback.device_type)
        self.batches.append(inputs)
        self.compute_again = partial(self._forward_backward, model, rest, named)
        losses = self.memory.compute(self, "training", [inputs], self.compute_again, self._start_step_again)
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _forward_backward(
        self, model: torch.nn.Module, rest: Any, named: Any, inputs: dict[str, Any]
    ) -> torch.Tensor:
        num_tokens, num_target_tokens = inputs["num_tokens"], inputs["num_target_tokens"]
        loss = super().training_step(model, inputs, *rest, **named)
        self.in_step.add(Totals(loss.detach(), 0, num_tokens, num_target_tokens))
        return loss

    def _start_step_again(self) -> list[dict[str, Any]]:
        """Undo what of the step under way is done: its batches come again, from the same random states."""
        self.model_wrapped.zero_grad()
        self.in_step = Totals()
        set_random_states(self.saver.states, self.callback.device_type)
        return self.batches

    def train_seconds(self) -> float:
        """Seconds since training began, those of earlier processes counted in."""
        return time.perf_counter() - self.callback.started

    def end_step(self) -> None:
        """The step's sums, over all ranks, are now those of a whole step."""
        step = self.in_step
        if self.args.world_size > 1:
            asked = REQUEST.number is not None
            figures = (float(step.loss), step.num_tokens, step.num_target_tokens, asked)
            loss, tokens, targets, num_asked = self._sum(*figures)
            self._know_of_stop(num_asked > 0)
            self.in_step = Totals(loss / self.args.world_size, 0, int(tokens), int(targets))
        self.in_step.num_steps = 1
        self.totals.add(self.in_step)
        self.in_step = Totals()
        self.batches = []

    @property
    def is_stopping(self) -> bool:
        """Whether a signal has come: of several ranks to any, and all of them know."""
        return self.has_agreed_to_stop if self.args.world_size > 1 else REQUEST.number is not None

    def _know_of_stop(self, is_asked: bool) -> None:
        self.has_agreed_to_stop = is_asked
        if is_asked and REQUEST.number is None:
            REQUEST.number = signal.SIGTERM

    def stop_if_asked(self) -> None:
        """Where a signal came: save the last finished step, and raise Stopped. All ranks ask together."""
        self._know_of_stop(not self._agree(REQUEST.number is None))
        if self.is_stopping and self.state.global_step:
            self.saver.save(self)
        if self.is_stopping:
            REQUEST.enforce()

    def _save_checkpoint(self, *rest: Any, **named: Any) -> None:
        """Called by the Trainer after the step's line of metrics is written."""
        self.saver.save(self)
        if self.is_stopping:
            REQUEST.enforce()
