"""What happens around each step: gradients looked at, drift judged, metrics written."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from train.adapters.drift import DriftWatch
from train.device import DeviceChoices
from train.errors import UserError
from train.loop import processes
from train.loop.evaluation import Evaluator
from train.loop.findings import Finding, Level
from train.loop.health import GradientCheck, require_finite
from train.loop.heartbeat import HEARTBEAT
from train.loop.lines import say
from train.loop.metrics import MetricsFile, StepMetrics, Totals, peak_memory_bytes
from train.loop.progress import Progress
from train.loop.saver import seconds_before
from train.loop.watch import HealthWatch, keep_progress
from train.loop.watchdog import Watchdog

if TYPE_CHECKING:
    from train.loop.trainer import RunTrainer


class RunCallback(TrainerCallback):
    """Writes metrics and holds the health checks of each step."""

    def __init__(
        self,
        metrics: MetricsFile,
        gradients: GradientCheck,
        choices: DeviceChoices,
        drift: DriftWatch,
        watch: HealthWatch,
        evaluator: Evaluator,
        progress: Progress,
        watchdog: Watchdog,
    ) -> None:
        self.watchdog = watchdog
        self.watch = watch
        self.metrics = metrics
        self.gradients = gradients
        self.drift = drift
        self.evaluator = evaluator
        self.progress = progress
        self.device_type = choices.device.value
        # A dynamic loss scale finds its size by overflowing: such a step is skipped, not wrong.
        self.scaled = choices.precision.value == "fp16"
        self.trainer: RunTrainer  # the trainer says it is the one
        self.has_moved = False
        self.started = time.perf_counter()

    def on_train_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        self.started = time.perf_counter() - seconds_before(self.trainer.start)[1]
        self.trainer.memory.begin(self.trainer)
        self.watch.begin(self.trainer)

    def on_step_begin(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        HEARTBEAT.beat("training", state.global_step)
        self.trainer.require_restored()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        try:
            self._look_before_step(state.global_step + 1)
        except UserError:
            keep_progress(self.trainer)
            raise

    def _look_before_step(self, step: int) -> None:
        self.watch.before_step(self.trainer, self.scaled)
        if self.gradients.without and self.gradients.look() and self.has_moved:
            self.watch.findings.add(self.gradients.finding(step))
        try:
            lines = self.drift.before_step(step, self.trainer.optimizer)
        except UserError as fault:
            self.watch.findings.keep(drift_finding(step, fault.message, "stop"))
            raise
        say(lines)
        for line in lines:
            self.watch.findings.keep(drift_finding(step, line, "warning"), is_said=True)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        skipped = self.trainer.accelerator.optimizer_step_was_skipped
        self.watch.num_skipped += skipped
        if named["optimizer"].param_groups[0]["lr"] > 0 and not skipped:
            self.has_moved = True

    def on_substep_end(self, args: Any, state: Any, *rest: Any, **named: Any) -> None:
        HEARTBEAT.beat("training", state.global_step)
        if args.world_size == 1:  # several would have to talk in each batch: they stop after the step
            self.trainer.stop_if_asked()

    def on_step_end(self, args: Any, state: Any, control: Any, **named: Any) -> None:
        HEARTBEAT.beat("training", state.global_step)
        self.trainer.end_step()
        self.watchdog.allow("step")
        self.trainer.saver.note_states(self.device_type)
        self.progress.stepped(state.global_step, state.max_steps)
        control.should_evaluate = self.evaluator.is_due(
            state.global_step, float(state.epoch), state.max_steps
        )
        if state.global_step >= state.max_steps or control.should_evaluate:
            control.should_log = True  # whatever logging_steps says: no step is left out of the figures
        is_due = self.trainer.saver.is_due(state.global_step, state.max_steps)
        control.should_save = is_due or self.trainer.is_stopping

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **named: Any
    ) -> None:
        if not logs or "loss" not in logs:
            return
        totals, self.trainer.totals = self.trainer.totals, Totals()
        drift = self.drift.read()
        step = StepMetrics(
            step=state.global_step,
            epoch=logs["epoch"],
            loss=float(totals.loss) / totals.num_steps,  # the Trainer's own forgets what was before a resume
            learning_rate=logs["learning_rate"],
            grad_norm=float(logs["grad_norm"]),
            num_tokens=totals.num_tokens,
            num_target_tokens=totals.num_target_tokens,
            seconds=self.trainer.train_seconds(),
            peak_memory_bytes=max(processes.gather(peak_memory_bytes(self.device_type))),
            **(asdict(drift) if drift else {}),
            **(self._scaling() if self.scaled else {}),
        )
        previous = self.metrics.last_logged()
        self.metrics.write(step)
        require_finite(step.step, loss=step.loss, grad_norm=0.0 if self.scaled else step.grad_norm)
        self.progress.logged(step, previous, state.max_steps)
        self.watch.logged(step)

    def _scaling(self) -> dict[str, Any]:
        """fp16: the steps skipped since the last line, and the loss scale."""
        skipped, self.watch.num_skipped = self.watch.num_skipped, 0
        scaler = getattr(self.trainer.accelerator, "scaler", None)
        return {"num_skipped_steps": skipped, **({"loss_scale": scaler.get_scale()} if scaler else {})}


def drift_finding(step: int, line: str, level: Level) -> Finding:
    """The finding that a line of the drift watch is."""
    return Finding(
        "oft_series_drifts",
        level,
        step,
        line.removeprefix("warning: ").removeprefix(f"step {step}: "),
        "the Cayley-Neumann series is a rotation only near its start",
        "oft.cayley=exact is orthogonal at any learning rate",
    )
