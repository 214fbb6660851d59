"""metrics.jsonl: a line for each logged step, evaluation, finding, and sample of the cards."""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from train.errors import EXIT_CONFIG, UserError, unwritable
from train.loop.findings import Finding
from train.loop.manifest import ESCAPED, replace_text


@dataclass(frozen=True)
class StepMetrics:
    """A logged step; everything but `step`, `epoch` and the peak is of the steps since the last logged one.

    loss: mean over the steps of each step's mean over target tokens, in nats,
    unrounded. seconds: since training began. tokens: without padding.
    peak_memory_bytes: of the device; on the CPU the most that the process ever held. The next three are of
    OFT: the largest |R R^T - I|, the largest spectral norm of Q, and how the rotations R are made of Q; all
    of the step's forward. The last two are of fp16: steps whose gradients overflowed, and the scale of the
    loss after the step.
    """

    step: int
    epoch: float
    loss: float
    learning_rate: float
    grad_norm: float
    num_tokens: int
    num_target_tokens: int
    seconds: float
    peak_memory_bytes: int
    orthogonality_error: float | None = None
    skew_norm: float | None = None
    cayley: str | None = None
    num_skipped_steps: int | None = None
    loss_scale: float | None = None


@dataclass(frozen=True)
class EvaluationMetrics:
    """An evaluation after `step`. eval_loss: by the set's name, mean over its target tokens, in nats,
    unrounded. seconds: since training began.
    """

    step: int
    epoch: float
    eval_loss: dict[str, float]
    seconds: float


@dataclass(frozen=True)
class CardSample:
    """The cards at one moment, after `step`: a line `{"telemetry": {...}}` of its own.

    seconds: since sampling began in this process. cards: what the vendor's tool tells of each, as the fields
    of train.checks.host.cards.Card.
    """

    step: int
    seconds: float
    cards: list[dict[str, Any]]


@dataclass
class Totals:
    """Sums over the steps since the last line. loss: a tensor on the device, or 0."""

    loss: Any = 0.0
    num_steps: int = 0
    num_tokens: int = 0
    num_target_tokens: int = 0

    def add(self, other: Totals) -> None:
        self.loss = self.loss + other.loss
        self.num_steps += other.num_steps
        self.num_tokens += other.num_tokens
        self.num_target_tokens += other.num_target_tokens

    def as_dict(self) -> dict[str, float]:
        return {**vars(self), "loss": float(self.loss)}


Line = StepMetrics | EvaluationMetrics
Aside = Finding | CardSample
"""Lines that no checkpoint counts."""


class MetricsFile:
    """Appends step metrics and findings to a file, flushed line by line: a killed run keeps what it logged.

    `last_step`, `num_lines`: of the checkpoint from which a run goes on. Later lines are cut: those steps
    come again, and so does an evaluation that the checkpoint does not know yet. UserError (exit 78) where
    earlier ones are lost. is_written: False where another process writes the file. mirror: another place that
    gets every line.
    """

    def __init__(self, path: Path, last_step: int = 0, num_lines: int = 0, is_written: bool = True) -> None:
        kept = _kept(_read(path), last_step, num_lines) if last_step else []
        self._findings = {(line.name, line.level) for line in kept if isinstance(line, Finding)}
        self.lines: list[Line] = [line for line in kept if not isinstance(line, Aside)]
        self._lock = threading.Lock()  # samples come from a thread of their own
        self.mirror: Callable[[Line], None] | None = None
        if len(self.lines) != num_lines:
            raise UserError(
                f"{path}: holds {len(self.lines)} lines up to step {last_step}, {num_lines} were written",
                "put the file back as the run left it, or begin anew in another folder",
                EXIT_CONFIG,
            )
        self.path = path if is_written else Path(os.devnull)
        try:
            if is_written:
                replace_text(path, "".join(map(_text, kept)))
            self._file: IO[str] = self.path.open("a", encoding="utf-8", errors=ESCAPED)
        except OSError as fault:
            raise unwritable(path, fault) from None

    @property
    def steps(self) -> list[StepMetrics]:
        return [line for line in self.lines if isinstance(line, StepMetrics)]

    def last_logged(self) -> StepMetrics | None:
        """The newest step, without a look at all of a long run."""
        return next((line for line in reversed(self.lines) if isinstance(line, StepMetrics)), None)

    @property
    def evaluations(self) -> list[EvaluationMetrics]:
        return [line for line in self.lines if isinstance(line, EvaluationMetrics)]

    def write(self, metrics: Line) -> None:
        self.lines.append(metrics)
        self._append(metrics)
        if self.mirror:
            self.mirror(metrics)

    def write_finding(self, finding: Finding) -> None:
        """A line `{"finding": {...}}` of its own; one that a killed run has written stays as it is."""
        if (finding.name, finding.level) in self._findings:
            return
        self._findings.add((finding.name, finding.level))
        self._append(finding)

    def write_sample(self, sample: CardSample) -> None:
        """A sample is on the disk when this returns: a host that loses its power keeps it."""
        self._append(sample)
        self.sync()

    def _append(self, line: Line | Aside) -> None:
        with self._lock:
            try:
                self._file.write(_text(line))
                self._file.flush()
            except OSError as fault:
                raise unwritable(self.path, fault) from None

    def sync(self) -> None:
        """Wait until all lines are on the disk."""
        try:
            os.fsync(self._file.fileno())
        except OSError as fault:
            raise unwritable(self.path, fault) from None

    def close(self) -> None:
        with contextlib.suppress(OSError):  # of a line whose writing failed: that is on its way already
            self._file.close()


NO_NUMBERS = ("nan", "inf", "-inf")


def _text(line: Line | Aside) -> str:
    if isinstance(line, Finding):
        return json.dumps({"finding": asdict(line)}, ensure_ascii=False) + "\n"
    if isinstance(line, CardSample):
        return json.dumps({"telemetry": asdict(line)}, ensure_ascii=False) + "\n"
    # An overflowed fp16 step has such figures; JSON has no word for them.
    fields = {
        name: value if not isinstance(value, float) or math.isfinite(value) else str(value)
        for name, value in asdict(line).items()
        if value is not None
    }
    return json.dumps(fields, allow_nan=False) + "\n"


def _read(path: Path) -> list[Line | Aside]:
    """All whole lines; the last line of a killed run may be half a one."""
    lines: list[Line | Aside] = []
    for text in path.read_bytes().splitlines() if path.exists() else []:
        try:
            lines.append(_line(json.loads(text)))
        except (ValueError, TypeError, AttributeError, RecursionError):
            break
    return lines


def _line(fields: dict[str, Any]) -> Line | Aside:
    fields = {name: float(value) if value in NO_NUMBERS else value for name, value in fields.items()}
    if "finding" in fields:
        return Finding(**fields["finding"])
    if "telemetry" in fields:
        return CardSample(**fields["telemetry"])
    return EvaluationMetrics(**fields) if "eval_loss" in fields else StepMetrics(**fields)


def _kept(lines: list[Line | Aside], last_step: int, num_lines: int) -> list[Line | Aside]:
    """The lines of a checkpoint, and the findings up to it. One that a signal had made before its step was
    evaluated knows a line less than a process that went on from it and was killed.
    """
    kept = [line for line in lines if line.step <= last_step]
    counted = [line for line in kept if not isinstance(line, Aside)]
    while len(counted) > num_lines and isinstance(counted[-1], EvaluationMetrics):
        if counted[-1].step != last_step:
            break
        last = counted.pop()
        kept = [line for line in kept if line is not last]
    return kept


def peak_memory_bytes(device_type: str) -> int:
    """The most memory held so far: the allocator's figure on a device, the resident set on the CPU."""
    if device_type != "cpu":
        import torch

        return int(getattr(torch, device_type).max_memory_allocated())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
