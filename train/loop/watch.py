"""The health of a run while it trains: before each step, at each line of metrics, at each evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from train.config import RunConfig
from train.data.template import Sample
from train.errors import UserError
from train.loop import beforehand, nonfinite, processes, symptoms
from train.loop.findings import Finding, Findings
from train.loop.health import first_loss_finding, judge_first_loss
from train.loop.metrics import StepMetrics
from train.loop.state import set_random_states

if TYPE_CHECKING:
    from train.loop.trainer import RunTrainer

RISEN, RISEN_TWICE = 1.05, 1.01
"""An evaluation loss so many times its lowest, once or twice in a row, is no noise of the rows: they are the
same each time."""


class HealthWatch:
    """Turns what a run shows into findings. `evaluations`: name -> [(step, loss)], in order.

    kept: what `state` gave at the checkpoint from which the run goes on.
    """

    def __init__(
        self, config: RunConfig, vocab_size: int, findings: Findings, kept: dict[str, Any] | None = None
    ) -> None:
        self.config = config
        self.vocab_size = vocab_size
        self.findings = findings
        self.evaluations: dict[str, list[list[float]]] = dict((kept or {}).get("evaluations", {}))
        self.lines = list(findings.metrics.steps)
        self.warmup_steps = config.warmup_steps
        self.num_skipped = int((kept or {}).get("num_skipped", 0))

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it, beside the lines of metrics."""
        return {
            "findings": self.findings.as_list(),
            "evaluations": self.evaluations,
            "num_skipped": self.num_skipped,
        }

    def before_training(self, samples: Sequence[Sample], eval_samples: Sequence[Sample] | None) -> None:
        """Look at the rows; for a run that begins."""
        for finding in beforehand.data_findings(samples, eval_samples):
            self.findings.add(finding)

    def begin(self, trainer: RunTrainer) -> None:
        """Look at parameters, optimizer and schedule, as training takes them."""
        parameters = trainer.saver.gradients.parameters
        for finding in beforehand.parameter_findings(parameters, trainer.optimizer):
            self.findings.add(finding)
        self.warmup_steps = int(trainer.args.get_warmup_steps(trainer.state.max_steps))
        if trainer.start is None:
            self.findings.add(beforehand.warmup_finding(self.warmup_steps, trainer.state.max_steps))

    def before_step(self, trainer: RunTrainer, is_scaled: bool) -> None:
        """UserError (exit 70) where the step under way must not be taken: no target token, or, at steps that
        are logged, a loss or a gradient that is not finite. The weights are still those of the step before.
        """
        step = trainer.state.global_step + 1
        # Of several processes one may have nothing to do in a step: the line of metrics has their sum.
        if trainer.in_step.num_target_tokens == 0 and trainer.accelerator.num_processes == 1:
            self.findings.add(_no_targets(step, trainer))
        if not _is_logged(step, trainer):
            return
        # Of all ranks: each comes to the same verdict, and none waits for one that has stopped.
        figures = {"loss": sum(processes.gather(float(trainer.in_step.loss)))}
        if not is_scaled:
            figures["grad_norm"] = nonfinite.total_norm(trainer.saver.gradients.parameters.values())
        wrong = [f"{name} is {value}" for name, value in figures.items() if not math.isfinite(value)]
        if wrong:
            self.findings.add(self._not_finite(step, trainer, ", ".join(wrong)))

    def _not_finite(self, step: int, trainer: RunTrainer, figures: str) -> Finding:
        parameters = trainer.saver.gradients.parameters
        if bad := nonfinite.ruined(parameters):
            last = self.lines[-1].step if self.lines else 0
            where = f"\nthe adapter holds NaN since a step after {last}:\n{beforehand.named(bad)}"
        elif trainer.accelerator.num_processes > 1:
            where = "\nthe same command on one device names the module"
        else:
            if trainer.saver.states:
                set_random_states(trainer.saver.states, trainer.callback.device_type)
            model, samples = _parts(trainer)
            found, batch = nonfinite.locate(model, parameters, trainer.batches, trainer.compute_again)
            where = f"\n{found}{nonfinite.rows_line(batch, samples)}"
        return Finding(
            "not_finite",
            "stop",
            step,
            figures + where,
            "the learning rate is too high, or an operator overflows in this precision",
            "lower learning_rate, or take precision fp32; nothing after this step would be right",
        )

    def logged(self, line: StepMetrics) -> None:
        """Judge a line of metrics that was just written."""
        self.lines.append(line)
        if len(self.lines) == 1:
            verdict = judge_first_loss(line.loss, self.vocab_size)
            if not verdict.startswith("warning"):  # the finding says it
                print(verdict, flush=True)
            self.findings.add(first_loss_finding(line, self.vocab_size, bool(self.config.init_adapter)))
        uniform = math.log(self.vocab_size)
        for finding in symptoms.judge(self.lines, uniform, self.warmup_steps):
            self.findings.add(finding)

    def evaluated(self, step: int, name: str, loss: float) -> None:
        """Judge an evaluation loss (nats) of the rows called `name`, after `step` steps."""
        history = self.evaluations.setdefault(name, [])
        history.append([step, loss])
        best_step, best = min(history, key=lambda entry: entry[1])
        risen = [entry for entry in history[-2:] if entry[1] > RISEN_TWICE * best and entry[0] > best_step]
        if loss <= RISEN * best and len(risen) < 2:
            return
        if not self._falls_since(int(best_step)):
            return
        self.findings.add(
            Finding(
                "evaluation_rises" if name == "eval" else f"evaluation_rises_{name}",
                "warning",
                step,
                f"the loss of {name} is {loss:.4f}, {loss / best - 1:.1%} above its lowest, {best:.4f} at "
                f"step {int(best_step)}, while the training loss falls",
                "the rows are being learned by heart",
                f"stop at about step {int(best_step)}; more varied rows, a lower rank or rate, dropout",
            )
        )

    def _falls_since(self, step: int) -> bool:
        """Whether the training loss after a step is lower than it was up to there."""
        num_before = max(1, sum(line.step <= step for line in self.lines))
        then = [line.loss for line in self.lines[:num_before][-5:]]
        now = [line.loss for line in self.lines[num_before:][-5:]]
        return bool(now) and fmean(now) < fmean(then)


def _is_logged(step: int, trainer: RunTrainer) -> bool:
    """Whether this step waits for the device in any case, to be logged."""
    return step == 1 or step % trainer.args.logging_steps == 0 or step >= trainer.state.max_steps


def _no_targets(step: int, trainer: RunTrainer) -> Finding:
    found = [nonfinite.rows_line(batch, _parts(trainer)[1]) for batch in trainer.batches]
    return Finding(
        "no_target_tokens",
        "stop",
        step,
        "0 target tokens in this step" + "".join(found),
        "nothing can be learned from it: all labels are masked",
        "look at what is learned of these rows; raise max_length where prompts fill it",
    )


def _parts(trainer: RunTrainer) -> tuple[Any, Any]:
    """The model and the samples, which the Trainer knows by wider types."""
    return trainer.model, trainer.train_dataset


def keep_progress(trainer: RunTrainer) -> None:
    """Save the last finished step, where its weights are sound and a checkpoint can be written."""
    if trainer.state.global_step:
        try:
            trainer.saver.save(trainer)
        except UserError as fault:  # the fault that stops the run is the one to tell
            print(f"note: no further checkpoint: {fault.message}", flush=True)
