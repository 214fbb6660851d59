"""metrics.jsonl: one line per logged step."""

from __future__ import annotations

import json
import resource
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO


@dataclass(frozen=True)
class StepMetrics:
    """A logged step; everything but `step`, `epoch` and the peak is of the steps since the last logged one.

    loss: mean over the steps of each step's mean over target tokens, in nats,
    unrounded. seconds: since training began. tokens: without padding.
    peak_memory_bytes: of the device; on the CPU the most that the process ever held.
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


class MetricsFile:
    """Appends step metrics to a file, flushed line by line: a killed run keeps what it logged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.steps: list[StepMetrics] = []
        self._file: IO[str] = path.open("w", encoding="utf-8")

    def write(self, metrics: StepMetrics) -> None:
        self.steps.append(metrics)
        self._file.write(json.dumps(asdict(metrics)) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def peak_memory_bytes(device_type: str) -> int:
    """The most memory held so far: the allocator's figure on a device, the resident set on the CPU."""
    if device_type != "cpu":
        import torch

        return int(getattr(torch, device_type).max_memory_allocated())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
