"""Saves a run's checkpoints: when one is due, what goes into it, how many are kept."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train import __version__
from train.config import RunConfig
from train.loop import checkpoint, processes
from train.loop.checkpoint import Checkpoint
from train.loop.health import GradientCheck, require_finite
from train.loop.heartbeat import HEARTBEAT
from train.loop.manifest import ESCAPED
from train.loop.metrics import MetricsFile
from train.loop.model import share_files
from train.loop.state import random_states

if TYPE_CHECKING:
    from train.loop.trainer import RunTrainer


@dataclass
class Saver:
    """What checkpoints of one run have in common.

    facts: what a resume compares (inputs, versions, device choices). before: what was found before the first
    step. run_started: `time.perf_counter()` at the run's start, earlier starts counted in.
    """

    config: RunConfig
    facts: dict[str, Any]
    before: dict[str, Any]
    metrics: MetricsFile
    gradients: GradientCheck
    run_started: float
    states: dict[str, Any] = field(default_factory=dict)
    """The random states at the end of the last step: a stop inside a step goes back to there."""

    def is_due(self, step: int, max_steps: int) -> bool:
        return step % self.config.save_steps == 0 or step >= max_steps

    def note_states(self, device_type: str) -> None:
        self.states = random_states(device_type)

    def save(self, trainer: RunTrainer) -> Path:
        """The checkpoint of the last finished step; UserError (exit 70) where it cannot be written or is not
        finite. All processes come here together, and rank 0 writes.
        """
        trainer.callback.watchdog.allow("checkpoint")
        states = processes.gather(self.states)
        folder = processes.on_first(lambda: self._save(trainer, states))
        trainer.callback.watchdog.allow("step")
        return folder

    def _save(self, trainer: RunTrainer, states: list[dict[str, Any]]) -> Path:
        parent = self.config.output / "checkpoints"
        step = trainer.state.global_step
        folder = checkpoint.list_steps(parent).get(step)
        if folder is None:
            HEARTBEAT.beat("saving", step)
            self._require_sound(trainer)
            self.metrics.sync()
            folder = checkpoint.write(parent, step, partial(self._fill, trainer, states))
            kept = trainer.callback.evaluator.kept_step
            rotated = checkpoint.rotate(parent, self.config.save_total_limit, kept)
            lines = [f"checkpoint: {folder}", *rotated]
            print("\n".join(lines), flush=True)
        return folder

    def _require_sound(self, trainer: RunTrainer) -> None:
        """UserError (exit 70) before ruined weights push sound ones out of the checkpoints that are kept."""
        weights = sum(
            float(parameter.detach().double().sum()) for parameter in self.gradients.parameters.values()
        )
        require_finite(trainer.state.global_step, loss=float(trainer.totals.loss), sum_of_weights=weights)

    def _fill(self, trainer: RunTrainer, states: list[dict[str, Any]], folder: Path) -> None:
        model: Any = trainer.model
        model.save_pretrained(str(folder))
        (folder / "README.md").unlink(missing_ok=True)  # PEFT's empty card
        state_files = trainer.save_state(folder, states)
        totals = trainer.totals
        content = {
            "isotune": __version__,
            "step": trainer.state.global_step,
            "max_steps": trainer.state.max_steps,
            "epoch": trainer.state.epoch,
            "evaluation": trainer.callback.evaluator.as_dict(),
            "state_files": state_files,
            "recipe": self.config.model_dump(mode="json"),
            **self.facts,
            "before": self.before,
            "num_metrics": len(self.metrics.lines),
            "since_last_metrics": totals.as_dict(),
            "has_moved": trainer.callback.has_moved,
            "without_gradient": sorted(self.gradients.without),
            "health": trainer.callback.watch.state(),
            "memory": trainer.memory.state(),
            "train_seconds": trainer.train_seconds(),
            "run_seconds": time.perf_counter() - self.run_started,
        }
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (folder / checkpoint.CONTENT).write_text(text, encoding="utf-8", errors=ESCAPED)
        share_files(folder)


def seconds_before(start: Checkpoint | None) -> tuple[float, float]:
    """Seconds of the run so far, and of its training, in all earlier processes."""
    if start is None:
        return 0.0, 0.0
    return start.content["run_seconds"], start.content["train_seconds"]
