"""Evaluation while a model trains: when it is due, which step was best, when to stop."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train.config import RunConfig
from train.errors import EXIT_CONFIG, UserError
from train.loop import checkpoint, resume
from train.loop.checkpoint import Checkpoint
from train.loop.health import require_finite
from train.loop.lines import say
from train.loop.metrics import EvaluationMetrics, MetricsFile
from train.loop.saver import seconds_before
from train.loop.state import random_states, set_random_states

if TYPE_CHECKING:
    from peft import PeftModel

    from train.loop.trainer import RunTrainer


@dataclass
class Standing:
    """What the evaluations of a run have shown so far. Each checkpoint holds it.

    without_improvement: evaluations in a row that were not better than the best by more than the threshold.
    """

    evaluated_step: int = 0
    best_step: int = 0
    best_loss: float | None = None
    without_improvement: int = 0
    is_stopped: bool = False


class Evaluator:
    """Evaluates the named sets of a run when it is due, and draws the consequences.

    `start`: the checkpoint from which the run goes on. UserError (exit 78) where that knows of a best
    adapter that is not there any more.
    """

    def __init__(self, config: RunConfig, metrics: MetricsFile, start: Checkpoint | None) -> None:
        self.config = config
        self.metrics = metrics
        self.names = list(config.eval_sets())
        self.decides = config.best_by or next(iter(self.names), "")
        known = start.content.get("evaluation") if start else None
        self.standing = Standing(**known) if known else Standing()
        self.last: dict[str, float] = {}
        """Losses of the last evaluation by this process."""
        if start and config.keep_best:
            self._require_best(start)

    @property
    def kept_step(self) -> int | None:
        """The step whose checkpoint must not be rotated away."""
        return self.standing.best_step or None if self.config.keep_best else None

    def is_due(self, step: int, epoch: float, max_steps: int) -> bool:
        """Whether the sets are evaluated after this step. `epoch`: how many were trained by then."""
        if not self.names:
            return False
        every = self.config.eval_steps
        return step >= max_steps or (epoch.is_integer() if every == "epoch" else step % every == 0)

    def losses(self, trainer: RunTrainer) -> dict[str, float]:
        """Mean loss per target token (nats) of each set. It draws no random number that training would."""
        device_type = trainer.args.device.type
        states = random_states(device_type)
        found = {name: trainer.evaluation_loss(name) for name in self.names}
        set_random_states(states, device_type)
        return found

    def after_step(self, trainer: RunTrainer) -> None:
        """Evaluate between a step's line of metrics and its checkpoint, and tell the trainer what follows."""
        state, control = trainer.state, trainer.control
        began = time.perf_counter()
        self._evaluate(trainer, state.global_step, float(state.epoch or 0), trainer.train_seconds)
        trainer.callback.progress.aside_seconds += time.perf_counter() - began
        if self.standing.is_stopped:
            control.should_training_stop = True
            state.max_steps = state.global_step  # a run that goes on from here has no step left
        if self.standing.is_stopped or self.kept_step == state.global_step:
            control.should_save = True

    def catch_up(self, trainer: RunTrainer, start: Checkpoint | None) -> None:
        """Evaluate what a signal kept the run from evaluating after the step from which it goes on."""
        if start is None or self.standing.evaluated_step >= start.step or self.standing.is_stopped:
            return
        epoch, max_steps = float(start.content.get("epoch") or 0), start.content["max_steps"]
        if self.is_due(start.step, epoch, max_steps):
            self._evaluate(trainer, start.step, epoch, lambda: seconds_before(start)[1])
        if self.standing.is_stopped:
            trainer.start = replace(start, content=start.content | {"max_steps": start.step})

    def _evaluate(self, trainer: RunTrainer, step: int, epoch: float, seconds: Any) -> None:
        self.last = self.losses(trainer)
        require_finite(step, **{f"eval loss of {name}": loss for name, loss in self.last.items()})
        self.metrics.write(EvaluationMetrics(step, epoch, self.last, seconds()))
        say(self.judge(step, self.last))
        for name, loss in self.last.items():
            trainer.callback.watch.evaluated(step, name, loss)

    def judge(self, step: int, losses: dict[str, float]) -> list[str]:
        """Take an evaluation into account, and say what it was and what follows."""
        standing, loss = self.standing, losses[self.decides]
        best, patience = standing.best_loss, self.config.early_stopping_patience
        is_better = best is None or loss < best - self.config.early_stopping_threshold
        standing.evaluated_step = step
        standing.without_improvement = 0 if is_better else standing.without_improvement + 1
        if best is None or loss < best:
            standing.best_step, standing.best_loss = step, loss
        shown = "  ".join(f"{name} {value:.4f}" for name, value in losses.items())
        is_lowest = standing.best_step == step
        against = "the lowest so far" if is_lowest else f"lowest {best:.4f} at step {standing.best_step}"
        lines = [f"eval loss after step {step}: {shown}  ({against})"]
        if patience is not None and standing.without_improvement >= patience:
            standing.is_stopped = True
            lines.append(
                f"early stopping: {patience} evaluations in a row without an improvement of more than "
                f"{self.config.early_stopping_threshold:g} by {self.decides}"
            )
        return lines

    def restore_best(self, model: PeftModel, last_step: int) -> list[str]:
        """Put the adapter of the best step into the model, where it is not the last one."""
        best = self.kept_step
        if best is None or best == last_step:
            return []
        folder = self._folder(best)
        if wrong := checkpoint.faults(folder):
            raise UserError(
                f"{folder}: the best adapter is no whole checkpoint: "
                + "; ".join(f"{name} {fault}" for name, fault in wrong.items()),
                "the last adapter is in the newest checkpoint beside it",
                EXIT_CONFIG,
            )
        resume.restore_adapter(model, Checkpoint(folder, {"step": best}), any_cayley=True)
        self.last = {}
        return [
            f"keep_best: the result is the adapter of step {best}, eval loss {self.standing.best_loss:.4f}"
        ]

    def results(self, before: dict[str, float], trainer: RunTrainer) -> dict[str, Any]:
        """What run.json says: of the set that decides a figure of its own, of all sets by name."""
        if not self.names:
            return {"eval_loss_before": None, "eval_loss_after": None}
        # Of the weights as they are now: those that training ended with, or the best.
        after = self.last or self.losses(trainer)
        return {
            "eval_loss_before": before[self.decides],
            "eval_loss_after": after[self.decides],
            "eval_losses": {name: {"before": before[name], "after": after[name]} for name in self.names},
            "best_step": self.standing.best_step,
            "best_eval_loss": self.standing.best_loss,
            "is_stopped_early": self.standing.is_stopped,
        }

    def as_dict(self) -> dict[str, Any]:
        return asdict(self.standing)

    def _folder(self, step: int) -> Path:
        return self.config.output / "checkpoints" / f"step-{step}"

    def _require_best(self, start: Checkpoint) -> None:
        folder = self._folder(self.standing.best_step)
        wrong = checkpoint.faults(folder) if self.standing.best_step and folder != start.folder else {}
        if not wrong:
            return
        place = f"{folder}: holds the best adapter so far and is no whole checkpoint"
        if not start.is_weights_only:
            raise UserError(
                f"{place}: {'; '.join(f'{name} {fault}' for name, fault in wrong.items())}",
                "put it back; with --set resume=weights-only the best is sought among the steps from here on",
                EXIT_CONFIG,
            )
        say([f"resume: {place}: the best is sought among the steps from here on"])
        self.standing.best_step, self.standing.best_loss, self.standing.without_improvement = 0, None, 0
