"""A run's sign of life: a small file with phase, step and time; and the health check that reads it.

Standard library only, and little of it: the check runs every minute beside a training that needs the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/workspace")
"""Where a run may write, the entrypoint's list. Not TMPDIR: a health check does not see what a shell in the
container has set."""
LIMIT_VARIABLE = "ISOTUNE_HEARTBEAT_LIMIT_SECONDS"
LIMIT_SECONDS = 1800.0
"""A step of a large model takes minutes, and so does reading its weights, which says nothing in between."""
WIDTH = 256
"""Bytes of the file, always: one write replaces it whole."""


class Heartbeat:
    """The heartbeat of this process. Without `running` around it nothing is written."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self.descriptor: int | None = None
        self.started: int | None = None
        self.phase = ""
        self.step = 0
        self.written = 0.0

    @contextlib.contextmanager
    def running(self, places: Sequence[str] = PLACES) -> Iterator[list[str]]:
        """Keep the file while a run is active; yields what there is to say where no place can be written."""
        self.path, self.descriptor = _created(places)
        self.started = start_ticks(os.getpid())
        self.phase, self.step, self.written = "", 0, 0.0
        self.beat("preparing")
        lines = []
        if self.path is None:
            lines = [f"note: no heartbeat for health checks: none of {', '.join(places)} can be written"]
        try:
            yield lines
        finally:
            self._close()

    def beat(self, phase: str, step: int | None = None) -> None:
        """Say that the run gets on. Cheap enough for each row: it writes what is new, or a second old.

        phase: a few words. step: finished steps; None: as it was.
        """
        if self.descriptor is None:
            return
        now = time.monotonic()
        step = self.step if step is None else step
        if (phase, step) == (self.phase, self.step) and now - self.written < 1:
            return
        self.phase, self.step, self.written = phase, step, now
        content = {"phase": phase, "step": step, "started": self.started, "monotonic": now}
        with contextlib.suppress(OSError):  # a full disk must not cost a run; an old heartbeat tells it
            os.pwrite(self.descriptor, json.dumps(content).ljust(WIDTH).encode(), 0)

    def _close(self) -> None:
        if self.descriptor is not None and self.path is not None:
            os.close(self.descriptor)
            self.path.unlink(missing_ok=True)
        self.path = self.descriptor = None


HEARTBEAT = Heartbeat()
"""The process's own: one process is one run."""


def _created(places: Sequence[str]) -> tuple[Path | None, int | None]:
    """A new file in the first place that takes one. The name is the process's own, in its own container."""
    for place in places:
        path = Path(place) / f"{_prefix()}{os.getpid()}"
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)  # of a process that was killed and had the same number
            return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    return None, None


def _prefix() -> str:
    """Containers may share /tmp or /dev/shm, and in each of them the run is process 1."""
    try:
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        namespace = 0
    return f"isotune-heartbeat-{namespace}-"


def start_ticks(process: int | str) -> int | None:
    """When a process started, in clock ticks after boot; None where it is gone or has ended."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name in parentheses may hold anything; state is the first field after it, the start the 20th.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def health(places: Sequence[str], limit_seconds: float, now: float) -> tuple[bool, list[str]]:
    """Whether all runs of this container get on, with a line for each. now: of `time.monotonic`.

    Without an active run a container is healthy: a file whose process is gone counts for nothing.
    """
    lines, is_healthy = [], True
    for path in sorted(path for place in places for path in Path(place).glob(f"{_prefix()}[0-9]*")):
        process = path.name.rpartition("-")[2]
        beat = _read(path) if process.isdigit() else None
        if beat is None or start_ticks(process) != beat["started"]:
            continue
        age = now - beat["monotonic"]
        what = f"process {process}, {beat['phase']}, {beat['step']} steps done"
        if age > limit_seconds:
            is_healthy = False
            limit = f"{limit_seconds:.0f} s are allowed: {LIMIT_VARIABLE}"
            lines.append(f"unhealthy: {what}: no sign of life for {age:.0f} s ({limit})")
        else:
            lines.append(f"healthy: {what}: last sign of life {max(age, 0):.0f} s ago")
    return is_healthy, lines or ["healthy: no run is active"]


def _read(path: Path) -> dict[str, Any] | None:
    """None where the file went away, or nothing was written to it yet."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def main(places: Sequence[str] = PLACES) -> None:
    """The container's health check: one line per run, exit code 0 or 1."""
    given = os.environ.get(LIMIT_VARIABLE) or str(LIMIT_SECONDS)
    try:
        limit = float(given)
        if not limit > 0:
            raise ValueError
    except ValueError:
        print(f"unhealthy: {LIMIT_VARIABLE}={given}: is no number of seconds above 0")
        sys.exit(1)
    is_healthy, lines = health(places, limit, time.monotonic())
    print("\n".join(lines))
    sys.exit(0 if is_healthy else 1)
