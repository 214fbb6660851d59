"""metrics.jsonl: one line per logged step, and one per finding."""

from __future__ import annotations

import json
import os
import resource
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from train.errors import EXIT_CONFIG, UserError
from train.loop.findings import Finding


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


class MetricsFile:
    """Appends step metrics and findings to a file, flushed line by line: a killed run keeps what it logged.

    `last_step`, `num_lines`: of the checkpoint from which a run goes on. Later lines are cut: those steps
    come again. UserError (exit 78) where earlier ones are lost.
    """

    def __init__(self, path: Path, last_step: int = 0, num_lines: int = 0) -> None:
        self.path = path
        kept = _read(path, last_step) if last_step else []
        self._findings = {(line.name, line.level) for line in kept if isinstance(line, Finding)}
        self.steps: list[StepMetrics] = [line for line in kept if isinstance(line, StepMetrics)]
        if len(self.steps) != num_lines:
            raise UserError(
                f"{path}: holds {len(self.steps)} lines up to step {last_step}, {num_lines} were written",
                "put the file back as the run left it, or begin anew in another folder",
                EXIT_CONFIG,
            )
        temporary = path.with_suffix(".jsonl.tmp")
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(_line(line) for line in kept)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        self._file: IO[str] = path.open("a", encoding="utf-8")

    def write(self, metrics: StepMetrics) -> None:
        self.steps.append(metrics)
        self._file.write(_line(metrics))
        self._file.flush()

    def write_finding(self, finding: Finding) -> None:
        """A line `{"finding": {...}}` of its own; one that a killed run has written stays as it is."""
        if (finding.name, finding.level) in self._findings:
            return
        self._findings.add((finding.name, finding.level))
        self._file.write(_line(finding))
        self._file.flush()

    def sync(self) -> None:
        """Wait until all lines are on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _line(line: StepMetrics | Finding) -> str:
    if isinstance(line, Finding):
        return json.dumps({"finding": asdict(line)}, ensure_ascii=False) + "\n"
    return json.dumps({name: value for name, value in asdict(line).items() if value is not None}) + "\n"


def _read(path: Path, last_step: int) -> list[StepMetrics | Finding]:
    """The lines up to a step; the last line of a killed run may be half a one."""
    lines: list[StepMetrics | Finding] = []
    for text in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            content = json.loads(text)
            lines.append(Finding(**content["finding"]) if "finding" in content else StepMetrics(**content))
        except (ValueError, TypeError):
            break
    return [line for line in lines if line.step <= last_step]


def peak_memory_bytes(device_type: str) -> int:
    """The most memory held so far: the allocator's figure on a device, the resident set on the CPU."""
    if device_type != "cpu":
        import torch

        return int(getattr(torch, device_type).max_memory_allocated())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
