"""What became of the rows of one file, in figures and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

SHOWN = 20


@dataclass
class DataSummary:
    """What became of the rows of one file.

    num_bad: rows that cannot be learned from. num_too_long: rows of which nothing was kept for their length;
    num_turns_too_long: samples left out of rows that were kept in part. num_split: rows that became several
    samples. num_duplicates: samples equal to an earlier one, `duplicates` the first of them with the earlier
    one's place. longest_tokens: before any cut; the smallest max_length that keeps everything. notes: which
    files were read, and what the cache of samples had to say.
    """

    path: str
    sha256: str
    num_rows: int = 0
    num_bad: int = 0
    num_kept: int = 0
    num_too_long: int = 0
    num_turns_too_long: int = 0
    num_cut: int = 0
    num_split: int = 0
    num_samples: int = 0
    num_duplicates: int = 0
    longest_tokens: int = 0
    longest_place: str = ""
    shortest_tokens: int = 0
    num_tokens: int = 0
    num_target_tokens: int = 0
    max_length: int = 0
    formats: dict[str, int] = field(default_factory=dict)
    ignored_fields: dict[str, int] = field(default_factory=dict)
    bad_rows: list[str] = field(default_factory=list)
    duplicates: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The summary in words: what was kept, and each thing that was not taken as it was."""
        formats = ", ".join(f"{name} {count}" for name, count in self.formats.items())
        share = self.num_target_tokens / self.num_tokens if self.num_tokens else 0.0
        lines = [
            *self.notes,
            f"{self.path}: kept {self.num_kept} of {self.num_rows} rows ({formats or 'no format'}), "
            f"{self.num_tokens} tokens, {self.num_target_tokens} of them learned ({share:.0%}), "
            f"longest {self.longest_tokens}",
        ]
        lines += [f"{self.path}: {line}" for line in self._exceptions()]
        return lines + [f"  {row}" for row in listed(self.bad_rows, self.num_bad, "bad rows")]

    def _exceptions(self) -> list[str]:
        lines = []
        if self.num_bad:
            lines.append(
                f"left out {self.num_bad} bad rows ({self.num_bad / self.num_rows:.2%}), listed below"
            )
        keeps = f"; max_length {self.longest_tokens} keeps everything whole"
        if self.num_too_long:
            lines.append(f"left out {self.num_too_long} rows longer than max_length {self.max_length}{keeps}")
        if self.num_turns_too_long:
            lines.append(
                f"left out {self.num_turns_too_long} turns longer than max_length {self.max_length} of rows "
                f"whose other turns were kept{keeps}"
            )
        if self.num_cut:
            lines.append(f"cut the prompts of {self.num_cut} samples to max_length {self.max_length}{keeps}")
        if self.num_split:
            lines.append(
                f"split {self.num_split} conversations, {self.num_samples} samples in all: the chat template "
                "writes earlier turns otherwise once they are history"
            )
        if self.num_duplicates:
            later, first = self.duplicates[0]
            lines.append(
                f"{self.num_duplicates} samples equal earlier ones, the first: {later} equals {first}"
            )
        if self.ignored_fields:
            fields = ", ".join(
                f"{name} ({count} rows)" for name, count in sorted(self.ignored_fields.items())
            )
            lines.append(f"fields that no format reads: {fields}")
        return lines


def listed(items: Sequence[str], count: int, name: str) -> list[str]:
    """The first of many, and a count of the rest."""
    lines = list(items[:SHOWN])
    return [*lines, f"and {count - len(lines)} more {name}"] if count > len(lines) else lines
