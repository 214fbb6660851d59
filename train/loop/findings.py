"""What a run finds out about itself: said at once, once of a kind, and kept in metrics.jsonl and run.json."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from train.errors import EXIT_TRAINING, UserError

if TYPE_CHECKING:
    from train.loop.metrics import MetricsFile

Level = Literal["note", "warning", "stop"]


@dataclass(frozen=True)
class Finding:
    """Something that a run's user should know. `step` 0: before the first one.

    seen: what was seen, with its figures; lines of it are names. `stop`: the run ends with exit 70.
    """

    name: str
    level: Level
    step: int
    seen: str
    cause: str
    cure: str

    def line(self) -> str:
        """The finding in words for the terminal."""
        where = f"step {self.step}: " if self.step else ""
        return f"{self.level}: {where}{self.seen}: {self.cause}; {self.cure}"


class Findings:
    """All findings of a run, one of each name and level; further ones are counted.

    metrics: gets a line of each. tell: takes them all, as run.json holds them. kept: those of a run that goes
    on, from its checkpoint.
    """

    def __init__(
        self,
        metrics: MetricsFile,
        tell: Callable[[list[dict[str, Any]]], None],
        kept: list[dict[str, Any]] | None = None,
    ) -> None:
        self.metrics = metrics
        self.tell = tell
        self.found: dict[tuple[str, str], dict[str, Any]] = {
            (entry["name"], entry["level"]): dict(entry) for entry in kept or []
        }

    def add(self, finding: Finding | None, is_said: bool = False) -> None:
        """Keep a finding; UserError (exit 70) where its level is stop. `is_said`: the terminal has it."""
        if finding is None:
            return
        self.keep(finding, is_said)
        if finding.level == "stop":
            raise fault_of(finding)

    def keep(self, finding: Finding, is_said: bool = False) -> None:
        """Keep and say a finding, whatever its level: for a fault that is on its way already."""
        key = finding.name, finding.level
        if key in self.found:
            self.found[key]["times"] += 1
            self.found[key]["last_step"] = finding.step
        else:
            self.found[key] = {**asdict(finding), "times": 1, "last_step": finding.step}
            self.metrics.write_finding(finding)
            self.publish()
            if finding.level != "stop" and not is_said:
                print(finding.line(), flush=True)

    def as_list(self) -> list[dict[str, Any]]:
        """Every finding with how often it was made (`times`) and when last, in order of the first."""
        return list(self.found.values())

    def publish(self) -> None:
        """Put them into run.json as they are now."""
        self.tell(self.as_list())


def fault_of(finding: Finding) -> UserError:
    """The fault (exit 70) that a finding of the level `stop` is."""
    where = f"step {finding.step}: " if finding.step else ""
    return UserError(f"{where}{finding.seen}", f"{finding.cause}; {finding.cure}", EXIT_TRAINING)
