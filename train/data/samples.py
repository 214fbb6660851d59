"""From files to samples: read, convert, tokenise, and account for every row."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from train.data.formats import Record, convert_rows
from train.data.records import Fault, hash_file, read_rows
from train.data.template import ChatTemplate, Sample, TemplateFault
from train.errors import EXIT_DATA, UserError

SHOWN_FAULTS = 20


@dataclass
class DataSummary:
    """What became of the rows of one file."""

    path: str
    sha256: str
    num_rows: int
    num_kept: int
    num_too_long: int
    longest_tokens: int
    num_tokens: int
    num_target_tokens: int
    formats: dict[str, int]
    ignored_fields: dict[str, int]

    def lines(self) -> list[str]:
        """The summary in words."""
        formats = ", ".join(f"{name} {count}" for name, count in self.formats.items())
        lines = [
            f"{self.path}: kept {self.num_kept} of {self.num_rows} rows ({formats}), "
            f"{self.num_tokens} tokens, {self.num_target_tokens} of them learned, "
            f"longest {self.longest_tokens}"
        ]
        if self.num_too_long:
            lines.append(f"{self.path}: left out {self.num_too_long} rows longer than max_length")
        if self.ignored_fields:
            fields = ", ".join(
                f"{name} ({count} rows)" for name, count in sorted(self.ignored_fields.items())
            )
            lines.append(f"{self.path}: fields that no format reads: {fields}")
        return lines


@dataclass
class Samples:
    """The kept samples of one file, their records in the same order, and the account of all rows."""

    samples: list[Sample]
    records: list[Record]
    summary: DataSummary = field(repr=False)


def load_samples(path: Path, template: ChatTemplate, max_length: int, overlong: str) -> Samples:
    """Read and tokenise a file. UserError (exit 65) lists every bad row; nothing is cut.

    `overlong`: what happens to samples of more than `max_length` tokens: `drop` leaves them out and counts
    them, `error` stops.
    """
    digest = hash_file(path)
    rows, faults = read_rows(path)
    conversion = convert_rows(rows)
    faults += conversion.faults
    tokenised: list[tuple[Record, Sample]] = []
    for record in conversion.records:
        try:
            tokenised.append((record, template.sample(record)))
        except TemplateFault as fault:
            faults.append(Fault(record.place, str(fault)))
    _refuse(faults)
    kept = [(record, sample) for record, sample in tokenised if len(sample.input_ids) <= max_length]
    too_long = [sample for _, sample in tokenised if len(sample.input_ids) > max_length]
    _check_lengths(path, tokenised, kept, too_long, max_length, overlong)
    summary = DataSummary(
        path=str(path),
        sha256=digest,
        num_rows=len(rows),
        num_kept=len(kept),
        num_too_long=len(too_long),
        longest_tokens=max(len(sample.input_ids) for _, sample in tokenised),
        num_tokens=sum(len(sample.input_ids) for _, sample in kept),
        num_target_tokens=sum(sample.num_target_tokens for _, sample in kept),
        formats=conversion.formats,
        ignored_fields=conversion.ignored_fields,
    )
    return Samples([sample for _, sample in kept], [record for record, _ in kept], summary)


def _refuse(faults: list[Fault]) -> None:
    if not faults:
        return
    faults = sorted(faults, key=lambda fault: int(fault.place.rpartition(":")[2]))
    lines = [str(fault) for fault in faults[:SHOWN_FAULTS]]
    if len(faults) > SHOWN_FAULTS:
        lines.append(f"and {len(faults) - SHOWN_FAULTS} more bad rows")
    raise UserError("\n".join(lines), f"mend or remove the bad rows ({len(faults)} of them)", EXIT_DATA)


def _check_lengths(
    path: Path,
    tokenised: list[tuple[Record, Sample]],
    kept: list[tuple[Record, Sample]],
    too_long: list[Sample],
    max_length: int,
    overlong: str,
) -> None:
    if not tokenised:
        raise UserError(f"{path}: holds no rows", "give a file with at least one row", EXIT_DATA)
    longest = max(len(sample.input_ids) for _, sample in tokenised)
    if too_long and overlong == "error":
        lines = [
            f"{sample.place}: {len(sample.input_ids)} tokens, max_length is {max_length}"
            for sample in too_long
        ]
        raise UserError(
            "\n".join(lines[:SHOWN_FAULTS]), f"--set max_length={longest} keeps every row", EXIT_DATA
        )
    if not kept:
        raise UserError(
            f"{path}: kept 0 of {len(tokenised)} rows: {len(too_long)} too long "
            f"(longest {longest} > {max_length})",
            f"--set max_length={longest} keeps every row",
            EXIT_DATA,
        )
