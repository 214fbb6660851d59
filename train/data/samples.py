"""From files to samples: read, convert, tokenise, and account for every row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from train.data.formats import Record
from train.data.records import Fault
from train.data.sources import find_source, hash_source, read_records
from train.data.template import ChatTemplate, Sample, TemplateFault
from train.data.tokenised import Made, sample_key, through_cache
from train.errors import EXIT_DATA, UserError

SHOWN_FAULTS = 20


@dataclass
class DataSummary:
    """What became of the rows of one file."""

    path: str
    sha256: str
    notes: list[str]
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
            *self.notes,
            f"{self.path}: kept {self.num_kept} of {self.num_rows} rows ({formats}), "
            f"{self.num_tokens} tokens, {self.num_target_tokens} of them learned, "
            f"longest {self.longest_tokens}",
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


def load_samples(
    path: Path, template: ChatTemplate, max_length: int, overlong: str, sample_cache: str = "off"
) -> Samples:
    """Read and tokenise a file, a folder or a glob. UserError (exit 65) lists every bad row; nothing is cut.

    `overlong`: what happens to samples of more than `max_length` tokens: `drop` leaves them out and counts
    them, `error` stops. `sample_cache`: as in the recipe.
    """
    source = find_source(path)
    digest = hash_source(source)
    conversion = read_records(source)
    faults = conversion.faults
    notes = source.lines()
    made = _tokenise(conversion.records, template)
    if sample_cache == "auto":
        key = sample_key(template.tokenizer, digest, {"thinking": template.thinking, "kinds": source.kinds()})
        made = through_cache(conversion.records, made, key, notes)
    tokenised: list[tuple[Record, Sample]] = []
    for record, one in zip(conversion.records, made, strict=True):
        if isinstance(one, TemplateFault):
            faults.append(Fault(record.place, str(one)))
        else:
            tokenised += [(record, sample) for sample in one]
    _refuse(faults)
    kept = [(record, sample) for record, sample in tokenised if len(sample.input_ids) <= max_length]
    too_long = [sample for _, sample in tokenised if len(sample.input_ids) > max_length]
    _check_lengths(path, tokenised, kept, too_long, max_length, overlong)
    summary = DataSummary(
        path=str(path),
        sha256=digest,
        notes=notes,
        num_rows=conversion.num_rows,
        num_kept=len(kept),
        num_too_long=len(too_long),
        longest_tokens=max(len(sample.input_ids) for _, sample in tokenised),
        num_tokens=sum(len(sample.input_ids) for _, sample in kept),
        num_target_tokens=sum(sample.num_target_tokens for _, sample in kept),
        formats=conversion.formats,
        ignored_fields=conversion.ignored_fields,
    )
    return Samples([sample for _, sample in kept], [record for record, _ in kept], summary)


def _tokenise(records: list[Record], template: ChatTemplate) -> Iterator[Made]:
    """The sample of each record, or why it has none."""
    for record in records:
        try:
            yield [template.sample(record)]
        except TemplateFault as fault:
            yield fault


def _refuse(faults: list[Fault]) -> None:
    if not faults:
        return
    faults = sorted(faults, key=Fault.position)
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
