"""Checks with a name, a status, their seconds and a detail; and the report that gathers them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from train import __version__
from train.errors import EXIT_CHECK_FAILED, UserError


class CheckFailed(Exception):
    """What is wrong, with the values."""


class Skipped(Exception):
    """Why a check could not be made here."""


@dataclass(frozen=True)
class Result:
    """The outcome of one check. status: passed, failed or skipped; detail: figures, fault or reason."""

    part: str
    name: str
    status: str
    seconds: float
    detail: str

    def line(self) -> str:
        return f"{self.status:<8}{self.part + ': ' + self.name:<26}{self.seconds:7.2f} s  {self.detail}"


@dataclass
class Report:
    """All outcomes. A skipped check is no failure, and never counts as passed."""

    backend: str
    results: list[Result] = field(default_factory=list)

    def check(self, part: str, name: str, function: Callable[[], str], stream: IO[str] | None = None) -> None:
        """Run one check; whatever it raises is its outcome, so that the others still run.

        `stream` gets its line.
        """
        started = time.perf_counter()
        try:
            status, detail = "passed", function()
        except Skipped as reason:
            status, detail = "skipped", str(reason)
        except CheckFailed as fault:
            status, detail = "failed", str(fault)
        except UserError as fault:
            status, detail = "failed", fault.message.replace("\n", "; ")
        except Exception as fault:  # a crash inside a check is its failure
            status, detail = "failed", f"{type(fault).__name__}: {fault}"
        self.add(Result(part, name, status, time.perf_counter() - started, detail), stream)

    def add(self, result: Result, stream: IO[str] | None = None) -> None:
        """Take in an outcome; `stream` gets its line."""
        self.results.append(result)
        if stream:
            print(result.line(), file=stream, flush=True)

    def count(self, status: str) -> int:
        return sum(result.status == status for result in self.results)

    @property
    def exit_code(self) -> int:
        return EXIT_CHECK_FAILED if self.count("failed") else 0

    def summary(self) -> str:
        counts = ", ".join(f"{self.count(status)} {status}" for status in ("passed", "failed", "skipped"))
        return f"verify ({self.backend}): {counts}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "isotune": __version__,
            "backend": self.backend,
            "status": "failed" if self.count("failed") else "passed" if self.count("passed") else "skipped",
            "passed": self.count("passed"),
            "failed": self.count("failed"),
            "skipped": self.count("skipped"),
            "checks": [asdict(result) for result in self.results],
        }
