"""What the processes of `train --nproc` leave for the one that started them: pids, faults, how they ended."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from train.errors import EXIT_CHECK_FAILED, EXIT_STOPPED, EXIT_TRAINING

FIRST_CRASHED = "rank 0 failed: "
"""Begins what the other ranks raise where rank 0 crashed in work that it does for all."""
LOST = "the connection to another process was lost"
"""Begins what a rank says where another one does not answer any more: what that one says is the cause."""

VARIABLE = "ISOTUNE_RANK_REPORTS"
"""Names the folder, in the environment of the processes."""
SHOWN_LINES = 30
"""So many last lines of stderr are shown of a rank that did not end by itself."""


def is_started() -> bool:
    """Whether this process is one of those that `train --nproc` started."""
    return VARIABLE in os.environ


@dataclass(frozen=True)
class Ending:
    """How a rank ended. code: its exit code; negative: the signal that killed it. at: seconds since 1970.

    is_crash: by an exception that nobody meant for a user; message is then the traceback.
    """

    rank: int
    code: int
    message: str = ""
    at: float = 0.0
    is_crash: bool = False


class Reports:
    """The folder of the reports of one start."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def came_up(self, rank: int) -> None:
        """This process is one that signals may be sent to."""
        self._write(f"pid-{rank}", str(os.getpid()))

    def pids(self) -> dict[int, int]:
        """Rank -> process id of all that came up."""
        return {int(path.name[4:]): int(path.read_text()) for path in self._of("pid-")}

    def ended(self, rank: int, code: int, message: str = "", is_crash: bool = False) -> None:
        """This process is about to end with an exit code, and why."""
        content = asdict(Ending(rank, code, message, time.time(), is_crash))
        self._write(f"end-{rank}", json.dumps(content))

    def killed(self, codes: dict[int, int]) -> None:
        """Rank -> exit code, as the process that started them saw those that failed first."""
        self._write("seen", json.dumps({str(rank): code for rank, code in codes.items()}))

    def failed_to_start(self, message: str) -> None:
        """The ranks could not be started, or find each other."""
        self._write("start", message)

    def errors_path(self, rank: int) -> Path:
        """Where a rank other than 0 writes its stderr."""
        return self.folder / f"stderr-{rank}"

    def endings(self) -> list[Ending]:
        """Of every rank that left word or was seen to be killed, in order of rank."""
        said = [Ending(**json.loads(path.read_text())) for path in self._of("end-")]
        known = {ending.rank for ending in said}
        seen = self.folder / "seen"
        codes = json.loads(seen.read_text()) if seen.exists() else {}
        said += [Ending(int(rank), code) for rank, code in codes.items() if int(rank) not in known]
        return sorted(said, key=lambda ending: ending.rank)

    def start_fault(self) -> str:
        path = self.folder / "start"
        return path.read_text() if path.exists() else ""

    def last_errors(self, rank: int) -> list[str]:
        """The last lines that a rank other than 0 wrote on stderr."""
        path = self.errors_path(rank)
        text = path.read_text(encoding="utf-8", errors="backslashreplace") if path.exists() else ""
        return text.splitlines()[-SHOWN_LINES:]

    def _of(self, prefix: str) -> Iterator[Path]:
        yield from (path for path in self.folder.glob(f"{prefix}*") if not path.name.endswith(".tmp"))

    def _write(self, name: str, text: str) -> None:
        """A reader never sees half of it."""
        path = self.folder / name
        temporary = path.with_name(name + ".tmp")
        temporary.write_text(text)
        temporary.replace(path)


def verdict(reports: Reports, asked: int | None) -> tuple[int, list[str]]:
    """The exit code of the whole, and the lines that say why, once: the cause, not what followed from it.

    asked: the signal that all were sent, None where none was.
    """
    endings = sorted((one for one in reports.endings() if one.code), key=lambda ending: ending.at)
    stops = [one for one in endings if _is_stop(one)]
    worded = [one for one in endings if one.message and not one.is_crash and not _is_stop(one)]
    lost = [one for one in worded if LOST in one.message]
    told = [one for one in worded if one not in lost]
    killed = [one for one in endings if not one.message]
    crashes = [one for one in endings if one.is_crash]
    stopped = [(one.code, one.message.splitlines()) for one in stops]
    if told:
        return told[0].code, _lines_of(told, told[0])
    if stops and asked is not None:
        return stopped[0]
    if killed:
        lines = [line for one in killed for line in [_killed(one), *_errors(reports, one.rank)]]
        return EXIT_TRAINING, [*lines, KILLED_HINT]
    if crashes:
        # The rank that crashed has the traceback; the others only heard of it.
        first = min(crashes, key=lambda one: (f"RuntimeError: {FIRST_CRASHED}" in one.message, one.at))
        return EXIT_CHECK_FAILED, [*_errors(reports, first.rank), *_prefixed(first)]
    if lost:
        return lost[0].code, _prefixed(lost[0])
    return stopped[0] if stopped else _without_a_word(reports, asked)


def _without_a_word(reports: Reports, asked: int | None) -> tuple[int, list[str]]:
    if asked is not None:
        return 128 + asked, [f"error: stopped by {signal.Signals(asked).name}; no checkpoint was saved"]
    if fault := reports.start_fault():
        return EXIT_TRAINING, [f"error: the processes did not come up: {fault}"]
    return EXIT_TRAINING, ["error: torchrun ended without a word: was it killed?", KILLED_HINT]


KILLED_HINT = (
    "hint: where nobody sent it, memory of the host or the container did not suffice (SIGKILL), or a library "
    "broke (SIGSEGV, SIGABRT); the same command goes on from the last checkpoint"
)


def _is_stop(ending: Ending) -> bool:
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    return ending.code in (EXIT_STOPPED, *(128 + number for number in signals))


def _killed(ending: Ending) -> str:
    if ending.code > 0:
        return f"error: rank {ending.rank} ended with exit code {ending.code} and left no word"
    try:
        name = signal.Signals(-ending.code).name
    except ValueError:
        name = f"signal {-ending.code}"
    return f"error: rank {ending.rank} was killed by {name}; the others cannot go on without it"


def _lines_of(told: list[Ending], first: Ending) -> list[str]:
    """The first fault, and those of other ranks that say something else."""
    shared = [one for one in told if one.message == first.message]
    lines = first.message.splitlines() if len(shared) > 1 else _prefixed(first)
    said = {first.message}
    for one in told:
        if one.message not in said:
            said.add(one.message)
            lines += _prefixed(one)
    return lines


def _prefixed(ending: Ending) -> list[str]:
    prefix = f"rank {ending.rank}: " if ending.rank else ""
    return [prefix + line for line in ending.message.splitlines()]


def _errors(reports: Reports, rank: int) -> list[str]:
    return [f"rank {rank}: {line}" for line in reports.last_errors(rank)]
