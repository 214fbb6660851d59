"""Ends a run that hangs: where no step ends for too long, the stacks of all threads are kept and it exits."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from train.errors import EXIT_TRAINING, UserError
from train.launch_reports import VARIABLE, Reports, is_started

Phase = Literal["first step", "step", "evaluation", "checkpoint"]
ALLOWANCES: dict[Phase, int] = {"first step": 4, "step": 1, "evaluation": 2, "checkpoint": 4}
"""So many times the limit: a first step compiles kernels and opens connections, a checkpoint may go to a slow
disk. An evaluation has its allowance for each of its batches."""
WAIT_SECONDS = 3600.0


class Watchdog:
    """Waits in a thread of its own for a training that goes on.

    It watches while it is entered. seconds: the limit of a step; 0 watches nothing. folder: gets
    `stacks-<rank>.txt`. tell: is given the reason before the process ends, by `os._exit` with code 70: a
    thread that hangs cannot be asked to stop.
    """

    def __init__(self, seconds: float, folder: Path, rank: int, tell: Callable[[str], None]) -> None:
        self.seconds, self.folder, self.rank, self.tell = seconds, folder, rank, tell
        self.phase: Phase = "first step"
        self.patience = 30.0  # seconds for what is written at the end
        self.deadline: float | None = None
        self._changed = threading.Condition()

    def __enter__(self) -> Watchdog:
        if self.seconds:
            self._set("first step", time.monotonic() + self.limit("first step"))
            threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, *fault: object) -> None:
        self._set("first step", None)

    def allow(self, phase: Phase) -> None:
        """From now on this phase may take its time; without effect while nothing is watched."""
        if self.deadline is not None:
            self._set(phase, time.monotonic() + self.limit(phase))

    def _set(self, phase: Phase, deadline: float | None) -> None:
        with self._changed:
            self.phase, self.deadline = phase, deadline
            self._changed.notify()

    def limit(self, phase: Phase) -> float:
        """Seconds that a phase may take."""
        return self.seconds * ALLOWANCES[phase]

    def _watch(self) -> None:
        with self._changed:
            while self.deadline is not None:
                left = self.deadline - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, WAIT_SECONDS))  # a lock cannot wait for 300 years
            else:
                return
        self._end()

    def _end(self) -> None:
        reason = f"the {self.phase} did not end within {self.limit(self.phase):g} s: the run hangs"
        path = self.folder / f"stacks-{self.rank}.txt"
        hint = f"where it stood is in {path}; the same command goes on from the last checkpoint; "
        hint += "a step that needs longer: --set step_timeout_seconds=N, 0 waits for ever"
        with contextlib.suppress(Exception):  # whatever fails here, the process ends
            faulthandler.dump_traceback(sys.stderr, all_threads=True)
            say_fault(self.rank, UserError(reason, hint, EXIT_TRAINING))
        # What hangs may be the disk itself: files are written by a thread that nobody has to wait for.
        writer = threading.Thread(target=self._keep, args=(path, reason), daemon=True)
        writer.start()
        writer.join(self.patience)
        os._exit(EXIT_TRAINING)

    def _keep(self, path: Path, reason: str) -> None:
        with contextlib.suppress(Exception), path.open("w", encoding="utf-8") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        with contextlib.suppress(Exception):
            self.tell(reason)


def say_fault(rank: int, fault: UserError) -> None:
    """Tell it where this rank's faults are told: whoever started all of them says it, or stderr."""
    if is_started():
        Reports(Path(os.environ[VARIABLE])).ended(rank, fault.exit_code, str(fault))
        return
    prefix = f"rank {rank}: " if rank else ""
    print("\n".join(prefix + line for line in str(fault).splitlines()), file=sys.stderr, flush=True)
