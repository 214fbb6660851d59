"""From files to samples: read, convert, tokenise, and account for every row."""

from __future__ import annotations

import contextlib
import gc
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from pathlib import Path

from train.data.formats import Record
from train.data.records import Fault
from train.data.sample import Sample, TemplateFault
from train.data.shorten import shorten
from train.data.sources import find_source, hash_source, read_records
from train.data.summary import SHOWN, DataSummary, listed
from train.data.template import ChatTemplate
from train.data.tokenise import tokenise
from train.data.tokenised import sample_key, through_cache
from train.errors import EXIT_DATA, UserError
from train.loop.heartbeat import HEARTBEAT

UNREAD = "were not read"
"""What the reader says of a file that it gave up: how many rows follow is not known."""


@dataclass(frozen=True)
class Policies:
    """What happens to rows that do not fit; fields as in the recipe.

    overlong: what happens to samples of more than max_length tokens: `drop` leaves them out and counts them,
    `error` stops, `cut-prompt` shortens texts of users and tools. bad_rows: `error` stops, `skip` leaves them
    out up to the share max_bad_rows of all rows.
    """

    max_length: int
    overlong: str = "drop"
    bad_rows: str = "error"
    max_bad_rows: float = 0.01


@dataclass
class Samples:
    """The kept samples of one file, the records that they are of, in order, and the account of all rows.

    A record has one sample, or several where its conversation was split. faults: every bad row. too_long:
    place and tokens of each sample that was left out. lengths: of all samples, in tokens, before any cut.
    """

    samples: list[Sample]
    records: list[Record]
    summary: DataSummary = field(repr=False)
    faults: list[Fault] = field(default_factory=list, repr=False)
    too_long: list[tuple[str, int]] = field(default_factory=list, repr=False)
    cut: list[str] = field(default_factory=list, repr=False)
    lengths: array[int] = field(default_factory=lambda: array("i"), repr=False)


def load_samples(
    path: Path, template: ChatTemplate, policies: Policies, sample_cache: str = "off"
) -> Samples:
    """Read and tokenise a file, a folder or a glob. UserError (exit 65) lists every bad row; nothing is cut
    without a word. `sample_cache`: as in the recipe.
    """
    loaded = account(path, template, policies, sample_cache)
    refuse(loaded, policies)
    return loaded


def account(path: Path, template: ChatTemplate, policies: Policies, sample_cache: str = "off") -> Samples:
    """All that a source holds, good and bad. UserError (exit 65) only where it cannot be read as a whole."""
    source = find_source(path)
    summary = DataSummary(str(path), hash_source(source), max_length=policies.max_length)
    conversion = read_records(source)
    summary.num_rows = len(conversion.records) + len(conversion.faults)
    summary.notes = source.lines()
    loaded = Samples([], [], summary, conversion.faults)
    summary.formats, summary.ignored_fields = conversion.formats, conversion.ignored_fields
    made = tokenise(template, conversion.records)
    if sample_cache == "auto":
        key = sample_key(template, summary.sha256, source.kinds())
        made = through_cache(conversion.records, made, key, summary.notes)
    with _rows_left_alone():
        for record, one in zip(conversion.records, made, strict=True):
            HEARTBEAT.beat("reading data")
            if isinstance(one, TemplateFault):
                loaded.faults.append(Fault(record.place, str(one)))
            else:
                _take(loaded, template, record, one, policies)
    loaded.faults.sort(key=Fault.position)
    summary.num_bad = len(loaded.faults)
    summary.bad_rows = [str(fault) for fault in loaded.faults[:SHOWN]]
    summary.num_samples = len(loaded.samples)
    summary.num_tokens = sum(len(sample.input_ids) for sample in loaded.samples)
    summary.num_target_tokens = sum(sample.num_target_tokens for sample in loaded.samples)
    summary.shortest_tokens = min(loaded.lengths, default=0)
    _note_duplicates(loaded)
    return loaded


@contextlib.contextmanager
def _rows_left_alone() -> Iterator[None]:
    """Python's collector would walk all rows again and again while samples are made: a tenth of the time."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _take(
    loaded: Samples, template: ChatTemplate, record: Record, made: list[Sample], policies: Policies
) -> None:
    """Take what fits of a record's samples, and count what does not."""
    summary, before = loaded.summary, len(loaded.samples)
    summary.num_split += len(made) > 1
    last = max(at for at, message in enumerate(record.messages) if message["role"] == "assistant")
    for number, sample in enumerate(made):
        length = len(sample.input_ids)
        loaded.lengths.append(length)
        if length > summary.longest_tokens:
            summary.longest_tokens, summary.longest_place = length, sample.place
        if length <= policies.max_length:
            loaded.samples.append(sample)
        elif policies.overlong == "cut-prompt" and (
            shorter := shorten(template, record, number, policies.max_length)
        ):
            loaded.samples.append(shorter[1])
            loaded.cut.append(sample.place)
            summary.num_cut += 1
            record = shorter[0] if len(made) == 1 else record
        else:
            loaded.too_long.append((sample.place, length))
    num_new = len(loaded.samples) - before
    if num_new:
        summary.num_kept += 1
        summary.num_turns_too_long += len(made) - num_new
        # Whoever asks for an answer to the record's prompt takes the last message for the one that is due.
        whole = last == len(record.messages) - 1
        loaded.records.append(record if whole else replace(record, messages=record.messages[: last + 1]))
    else:
        summary.num_too_long += 1


def _note_duplicates(loaded: Samples) -> None:
    seen: dict[bytes, str] = {}
    for sample in loaded.samples:
        digest = blake2b(bytes(memoryview(sample.input_ids)), digest_size=16)  # type: ignore[arg-type]
        digest.update(memoryview(sample.labels))  # type: ignore[arg-type]
        first = seen.setdefault(digest.digest(), sample.place)
        if first is not sample.place:
            loaded.summary.num_duplicates += 1
            if len(loaded.summary.duplicates) < SHOWN:
                loaded.summary.duplicates.append((sample.place, first))


def refuse(loaded: Samples, policies: Policies) -> None:
    """UserError (exit 65) where the policies forbid what was found, or nothing is left to learn from."""
    _refuse_bad_rows(loaded, policies)
    summary, path = loaded.summary, loaded.summary.path
    if not summary.num_rows:
        raise UserError(f"{path}: holds no rows", "give a file with at least one row", EXIT_DATA)
    longest = summary.longest_tokens
    hint = f"--set max_length={longest} keeps every row"
    if loaded.too_long and policies.overlong == "error":
        lines = [
            f"{place}: {tokens} tokens, max_length is {policies.max_length}"
            for place, tokens in loaded.too_long[:SHOWN]
        ]
        lines = listed(lines, len(loaded.too_long), "too long")
        raise UserError("\n".join(lines), hint, EXIT_DATA)
    if not loaded.samples:
        reasons = [f"{summary.num_bad} bad"] if summary.num_bad else []
        if summary.num_too_long:
            reasons.append(f"{summary.num_too_long} too long (longest {longest} > {policies.max_length})")
            hint += f", {summary.shortest_tokens} the shortest alone"
        else:
            hint = "mend the bad rows"
        raise UserError(f"{path}: kept 0 of {summary.num_rows} rows: {', '.join(reasons)}", hint, EXIT_DATA)


def _refuse_bad_rows(loaded: Samples, policies: Policies) -> None:
    count, faults = loaded.summary.num_bad, loaded.faults
    if not count:
        return
    lines = listed([str(fault) for fault in faults[:SHOWN]], count, "bad rows")
    hint = f"mend or remove the bad rows ({count} of them)"
    if policies.bad_rows == "skip":
        unread = [fault for fault in faults if UNREAD in fault.reason]
        if unread:
            raise UserError(str(unread[0]), "mend the file: what was not read cannot be skipped", EXIT_DATA)
        share = count / loaded.summary.num_rows
        if share <= policies.max_bad_rows:
            return
        lines.append(
            f"{loaded.summary.path}: {count} of {loaded.summary.num_rows} rows are bad ({share:.2%}), "
            f"max_bad_rows allows {policies.max_bad_rows:.2%}"
        )
    else:
        hint += ", or leave out a few with --set bad_rows=skip"
    raise UserError("\n".join(lines), hint, EXIT_DATA)
