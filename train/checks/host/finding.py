"""One thing that was looked for: what it is, how it was found, and what would mend it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from train.errors import EXIT_CHECK_FAILED, EXIT_UNAVAILABLE

PRESENT, MISSING, FORBIDDEN = "present", "missing", "not permitted"
PASSED, FAILED, UNKNOWN, NOTE = "passed", "failed", "unknown", "note"


@dataclass(frozen=True)
class Seen:
    """kind: device, mount, library, tool, driver, card, limit, place or engine. cure: what gives or
    mends it.

    needed: training is not possible without it.
    """

    kind: str
    name: str
    status: str
    detail: str = ""
    cure: str = ""
    needed: bool = True

    def lines(self) -> list[str]:
        """In words: the finding, and its cure below it."""
        detail = f": {self.detail}" if self.detail else ""
        cure = [f"{'':<14}-> {self.cure}"] if self.cure else []
        return [f"{self.status:<14}{self.kind} {self.name}{detail}", *cure]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def exit_code(seen: Iterable[Seen]) -> int:
    """69 where something needed is missing or not permitted, 1 where a check failed, else 0.

    What is unknown is told, and decides nothing.
    """
    statuses = {one.status for one in seen if one.needed}
    if statuses & {MISSING, FORBIDDEN}:
        return EXIT_UNAVAILABLE
    return EXIT_CHECK_FAILED if FAILED in statuses else 0


def counts(seen: Iterable[Seen]) -> str:
    """How many there are of each status that occurs."""
    statuses = [one.status for one in seen]
    known = (PRESENT, PASSED, MISSING, FORBIDDEN, FAILED, UNKNOWN, NOTE)
    return ", ".join(f"{statuses.count(name)} {name}" for name in known if name in statuses)
