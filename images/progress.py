"""Follow `docker buildx build --progress=plain`: one compact line per step, and on a failure what to try."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO

HEARTBEAT_SECONDS = 15
LAST_LINES = 15

STEP = re.compile(r"^#(?P<id>\d+) (?:\[(?P<place>[^\]]+)\] )?(?P<name>.+)$")
END = re.compile(r"^#(?P<id>\d+) (?:DONE (?P<seconds>[\d.]+)s|(?P<cached>CACHED)|ERROR: (?P<error>.*))$")
LOG = re.compile(r"^#(?P<id>\d+) (?:\d+\.\d+ )(?P<text>.*)$")
TITLE = re.compile(r"RUN (?:--\S+\s+)*: '([^']+)'")

# What a failing step's words mean, the most telling first: (pattern, what to try).
CURES = [
    (
        r"CERTIFICATE_VERIFY_FAILED|certificate verify failed|unknown authority",
        "behind a TLS proxy: --ca-bundle FILE",
    ),
    (r"DO NOT MATCH THE HASHES", "a wheel is not the locked one: take it out of --wheelhouse, or lock again"),
    (
        r"No matching distribution|Could not find a version",
        "no index has that wheel: --wheelhouse DIR or --index-url",
    ),
    (
        r"Temporary failure in name resolution|Name or service not known|NewConnectionError",
        "no way out of the build: --network host, --index-url, or --wheelhouse DIR",
    ),
    (
        r"failed to resolve source metadata|pull access denied|dial tcp",
        "the base image is out of reach: --base-image REF or --mirror HOST=HOST",
    ),
    (
        r"OCI exporter is not supported",
        "this engine's store has no OCI images: turn on its containerd image store",
    ),
    (
        r"(?i)multi-platform build is not supported|docker exporter does not.*manifest lists",
        "this engine's store holds one platform per name: turn on its containerd image store, or build one "
        "at a time with a --tag for each",
    ),
    (
        r"changed after the base image|was replaced: it came from|is refused here",
        "a package of the lock brings its own torch: take it out of the stack, or add it to `provided`",
    ),
    (
        r"the base image has \S+, the spec says|the base image does not have it",
        "the spec is for another base: --base-image REF, or put this one's versions into `torch` and "
        "`provided`, then build.py lock and render",
    ),
    (
        r"Temporary failure resolving|Could not connect to|Failed to fetch|Unable to locate package",
        "the archive of system packages is out of reach: --mirror HOST=HOST, or a --base-image that has them",
    ),
    (
        r"(?i)no space left on device|disk quota exceeded",
        "a disk is full: of the engine (docker system df shows what takes it, docker builder prune frees the "
        "build cache), or of this host if an --output goes there, or the memory that holds /tmp of a step",
    ),
    (
        r"No module named (?:venv|ensurepip)|ensurepip is not available",
        "the base lacks Python's venv: --base-image REF that has it (Debian, Ubuntu: python3-venv), "
        "or `system_packages` in the spec",
    ),
]


@dataclass
class Step:
    """One step of a build as far as it has been seen."""

    place: str
    title: str
    started: float
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))


@dataclass(frozen=True)
class Failure:
    """The step that failed, its last lines, and what to try."""

    step: str
    error: str
    lines: list[str]
    cure: str


class Follower:
    """Turns the engine's lines into short ones, and remembers the step that failed."""

    def __init__(self, clock: float | None = None) -> None:
        self.steps: dict[str, Step] = {}
        self.failure: Failure | None = None
        self.tail: deque[str] = deque(maxlen=LAST_LINES)
        self.beat = clock if clock is not None else time.monotonic()

    def feed(self, line: str, now: float) -> Iterator[str]:
        """Take one line of the engine; yields the lines to show."""
        if line.strip():
            self.tail.append(line.strip())
        if match := END.match(line):
            yield from self._end(match)
        elif match := LOG.match(line):
            step = self.steps.get(match["id"])
            if step and match["text"].strip():
                step.lines.append(match["text"].rstrip())
        elif (match := STEP.match(line)) and match["id"] not in self.steps:
            self.steps[match["id"]] = Step(match["place"] or "", _title(match["name"]), now)
        yield from self.idle(now)

    def idle(self, now: float) -> Iterator[str]:
        """Yield a sign of life of the running step, at most every HEARTBEAT_SECONDS."""
        if now - self.beat < HEARTBEAT_SECONDS or not self.steps:
            return
        self.beat = now
        step = list(self.steps.values())[-1]
        last = step.lines[-1].strip() if step.lines else step.title
        yield f"          {now - step.started:5.0f} s so far: {last[:80]}"

    def _end(self, match: re.Match[str]) -> Iterator[str]:
        step = self.steps.get(match["id"])
        if step is None:
            return
        self.beat = time.monotonic()
        if match["error"] is not None:
            self.failure = self.failure or _failure(step, match["error"])
            yield _row(step, "FAILED")
        elif match["cached"]:
            yield from [_row(step, "cached")] if _shown(step, 0) else []
        elif _shown(step, float(match["seconds"])):
            yield _row(step, f"{float(match['seconds']):.1f} s")


def follow(stream: IO[str], show: IO[str]) -> Follower:
    """Read a build's output to its end, showing short lines; returns what was learned."""
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_pump, args=(stream, lines), daemon=True).start()
    follower = Follower()
    while True:
        try:
            line = lines.get(timeout=HEARTBEAT_SECONDS)
        except queue.Empty:
            _print(follower.idle(time.monotonic()), show)
            continue
        if line is None:
            return follower
        _print(follower.feed(line.rstrip("\n"), time.monotonic()), show)


def cure(text: str) -> str:
    """Return what to try against a failing step's output, or an empty text."""
    return next((advice for pattern, advice in CURES if re.search(pattern, text)), "")


def _pump(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _print(lines: Iterable[str], show: IO[str]) -> None:
    for line in lines:
        print(line, file=show, flush=True)


def _title(name: str) -> str:
    match = TITLE.match(name)
    return match[1] if match else re.sub(r"--\S+\s+", "", name)


def _shown(step: Step, seconds: float) -> bool:
    """Numbered steps are always shown, the engine's own only when they take time."""
    return "/" in step.place or seconds >= 1


def _row(step: Step, result: str) -> str:
    number = step.place.split()[-1] if "/" in step.place else ""
    return f"  {number:>6}  {step.title[:78]:<78} {result:>9}"


def _failure(step: Step, error: str) -> Failure:
    lines = list(step.lines)
    advice = cure("\n".join([*lines, error]))
    if not advice and "verify" in step.title:
        advice = "the check named above failed: mend it, or see `train verify` in README.md"
    return Failure(step.title, error, lines, advice)
