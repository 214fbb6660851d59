"""Out of memory: known on every device type, told with what would fit, or given way to (`auto_batch`)."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import torch

from train.config import RunConfig
from train.errors import EXIT_TRAINING, UserError
from train.loop.findings import Finding
from train.loop.metrics import peak_memory_bytes
from train.loop.pieces import Batch, Size, pieces, size_of
from train.loop.watch import keep_progress

if TYPE_CHECKING:
    from train.loop.trainer import RunTrainer

Phase = Literal["training", "evaluation"]
WORDS = ("out of memory", "can't allocate memory", "cannot allocate memory", "alloc_failed")
"""In the messages of torch's allocators and of libraries below it, in lower case."""


def is_out_of_memory(fault: BaseException) -> bool:
    """Whether a fault says that memory, of the device or of the host, does not suffice."""
    if isinstance(fault, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(fault, RuntimeError) and any(words in str(fault).lower() for words in WORDS)


class MemoryGuard:
    """Computes batches in forwards that fit.

    budgets: phase -> the most tokens of one forward, once one did not fit. changes: what the run gave way in,
    for run.json. kept: what `state` gave at the checkpoint from which the run goes on.
    """

    def __init__(self, config: RunConfig, kept: dict[str, Any] | None = None) -> None:
        kept = kept or {}
        self.config = config
        self.budgets: dict[str, int] = dict(kept.get("budgets", {}))
        self.changes: list[dict[str, Any]] = list(kept.get("changes", []))
        self.has_turned_on = bool(kept.get("gradient_checkpointing", False))
        self.largest: dict[str, int] = {}
        self.under_way: Batch | None = None

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds, so that a resumed run cuts its batches in the same way."""
        return {
            "budgets": self.budgets,
            "changes": self.changes,
            "gradient_checkpointing": self.has_turned_on,
        }

    @property
    def is_checkpointing(self) -> bool:
        return self.config.gradient_checkpointing or self.has_turned_on

    def begin(self, trainer: RunTrainer) -> None:
        """Bring the model where the run so far had given way to."""
        if self.has_turned_on:
            _turn_on_checkpointing(trainer)

    def compute(
        self,
        trainer: RunTrainer,
        phase: Phase,
        batches: list[Batch],
        forward: Callable[[Batch], Any],
        start_again: Callable[[], list[Batch]],
    ) -> list[Any]:
        """What `forward` gives for each piece of the last batch.

        Where memory does not suffice and the run may give way, `start_again` undoes what was half done and
        says which batches are to be computed anew. UserError (exit 70) where nothing is left to give.
        """
        while True:
            results: list[Any] = []
            try:
                for batch in batches:
                    results = [self._one(phase, piece, forward) for piece in self._pieces(phase, batch)]
                return results
            except Exception as fault:
                if not is_out_of_memory(fault):
                    raise
                words = _first_line(fault)
            # Out of the handler: until then the fault's frames hold every tensor of the failed forward.
            results.clear()
            self._give_way(trainer, phase, words)
            batches = start_again()
            _free(trainer.callback.device_type)

    def _pieces(self, phase: Phase, batch: Batch) -> list[Batch]:
        return pieces(batch, self.budgets.get(phase))

    def _one(self, phase: Phase, piece: Batch, forward: Callable[[Batch], Any]) -> Any:
        self.under_way = piece
        result = forward(piece)
        self.largest[phase] = max(self.largest.get(phase, 0), piece["input_ids"].numel())
        return result

    def _give_way(self, trainer: RunTrainer, phase: Phase, words: str) -> None:
        assert self.under_way is not None
        piece, self.under_way = self.under_way, None
        size = size_of(piece)
        if not self.config.auto_batch or trainer.accelerator.num_processes > 1:
            if trainer.accelerator.num_processes == 1:  # the others are inside the step: they save nothing
                keep_progress(trainer)
            raise self._fault(trainer, phase, words, size)
        if len(pieces(piece, size.num_tokens - 1)) > 1:
            self.budgets[phase] = size.num_tokens // 2
            done = f"forwards of at most {size.num_tokens // 2} tokens from here on, the steps stay the same"
        elif phase == "training" and not self.is_checkpointing:
            _turn_on_checkpointing(trainer)
            self.has_turned_on = True
            done = "gradient checkpointing from here on"
        else:
            keep_progress(trainer)
            raise self._fault(trainer, phase, words, size)
        step = trainer.state.global_step + (phase == "training")
        self.changes.append({"step": step, "phase": phase, "forward": size.words(), "change": done})
        trainer.callback.watch.findings.add(self._finding(trainer, phase, step, size, done))

    def _finding(self, trainer: RunTrainer, phase: Phase, step: int, size: Size, done: str) -> Finding:
        kind = "checkpointing_on" if "checkpointing" in done else f"{size.num_tokens}_tokens"
        return Finding(
            f"out_of_memory_{phase}_{kind}",  # a finding is told once of each name: each change is one
            "warning",
            step,
            f"out of memory in {phase} with {size.words()}; {done}",
            "the forward is too large for this device",
            f"next time: {'; or '.join(self._flags(trainer, phase, size)) or 'a larger device'}",
        )

    def _fault(self, trainer: RunTrainer, phase: Phase, words: str, size: Size | None) -> UserError:
        from train.loop.checkpoint import list_steps

        step = trainer.state.global_step
        last = max(list_steps(self.config.output / "checkpoints"), default=None)
        on = f" (goes on from step {last})" if last else ""
        held = f"\nthe forward held {size.words()}; {_peak(trainer)}" if size else f"\n{_peak(trainer)}"
        if fitted := self.largest.get(phase):
            held += f"; the largest that fitted held {fitted} tokens"
        ways = self._flags(trainer, phase, size) if size else []
        if not self.is_checkpointing:
            ways.append(f"--set gradient_checkpointing=true{on}, less memory for about a third more time")
        if trainer.accelerator.num_processes > 1:
            held += "\nauto_batch acts in runs of one process: several would have to give way together"
        elif not self.config.auto_batch:
            ways.insert(0, f"--set auto_batch=true{on}: the run then finds what fits by itself")
        return UserError(
            f"out of memory in {phase}, after step {step}: {words}{held}",
            "; or ".join(ways) or "one sample alone is too large: a smaller max_length, or a larger device",
            EXIT_TRAINING,
        )

    def _flags(self, trainer: RunTrainer, phase: Phase, size: Size) -> list[str]:
        """The options with which a new run has smaller forwards and the same steps."""
        budget = self.budget(phase, size)
        if phase == "evaluation":  # the steps need not change because an evaluation did not fit
            return [f"--set auto_batch=true evaluates in forwards of at most {budget} tokens"]
        if size.num_samples == 1:
            way = f"a new --output with --set max_length={budget} leaves longer rows out"
            return [way] if self.is_checkpointing else []
        accumulation = self.config.gradient_accumulation_steps
        packed = getattr(self.config, "per_device_tokens", None)
        if packed:
            rows: Any = trainer.train_dataset
            budget = max(budget, *(len(sample.input_ids) for sample in rows))  # the longest sample is whole
            more = -(-packed * accumulation // budget)
            accumulation_flag = f"--set gradient_accumulation_steps={more}"
            return [f"a new --output with --set per_device_tokens={budget} {accumulation_flag}"]
        together = self.config.per_device_train_batch_size * accumulation
        fitting = max(1, min(budget // size.longest, self.config.per_device_train_batch_size - 1))
        batch = next(count for count in range(fitting, 0, -1) if together % count == 0)
        return [
            f"a new --output with --set per_device_train_batch_size={batch} "
            f"--set gradient_accumulation_steps={together // batch}: the same samples in each step"
        ]

    def budget(self, phase: Phase, size: Size) -> int:
        """Tokens of a forward that would fit: the most that did, and half of what did not otherwise."""
        fitted = self.largest.get(phase, 0)
        return max(1, size.num_tokens // 2, fitted if fitted < size.num_tokens else 0)

    @contextlib.contextmanager
    def told(self, trainer: RunTrainer) -> Iterator[None]:
        """Out of memory anywhere else, as in the optimizer, becomes a UserError (exit 70), too."""
        words = ""
        try:
            yield
        except Exception as fault:
            if not is_out_of_memory(fault):
                raise
            words = _first_line(fault)
        if words:
            size = size_of(self.under_way) if self.under_way else None
            raise self._fault(trainer, "training", words, size)


def _turn_on_checkpointing(trainer: RunTrainer) -> None:
    model: Any = trainer.model
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def _first_line(fault: BaseException) -> str:
    return (str(fault).strip() or type(fault).__name__).splitlines()[0][:200]


def _peak(trainer: RunTrainer) -> str:
    return f"peak memory {peak_memory_bytes(trainer.callback.device_type) / 2**30:.2f} GiB"


def _free(device_type: str) -> None:
    gc.collect()
    if device_type != "cpu":
        getattr(torch, device_type).empty_cache()
