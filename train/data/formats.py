"""Row formats, one function each in one table: a row becomes the messages that the chat template takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from train.data.records import Fault, Row


@dataclass(frozen=True)
class Record:
    """A conversation and the place of its row; the last message is the answer that is learned.

    `messages`: dicts with `role` (system, user, assistant) and `content`.
    """

    messages: list[dict[str, Any]]
    place: str
    tools: list[dict[str, Any]] | None = None


class RowFault(ValueError):
    """A row that its format cannot take; the text says which field and why."""


def _text(row: dict[str, Any], field: str, required: bool) -> str:
    value = row.get(field)
    if value is None and not required:
        return ""
    if not isinstance(value, str):
        given = "is missing" if field not in row else f"is {type(value).__name__} {value!r:.40}, text is due"
        raise RowFault(f"field {field!r} {given}")
    if required and not value.strip():
        raise RowFault(f"field {field!r} is empty")
    return value


def _alpaca(row: dict[str, Any]) -> list[dict[str, str]]:
    """instruction, input (may be empty or missing), output; system and history where given."""
    messages = []
    if system := _text(row, "system", required=False):
        messages.append({"role": "system", "content": system})
    for turn in _history(row):
        messages += [{"role": "user", "content": turn[0]}, {"role": "assistant", "content": turn[1]}]
    instruction = _text(row, "instruction", required=True)
    given = _text(row, "input", required=False)
    messages.append({"role": "user", "content": f"{instruction}\n{given}" if given else instruction})
    messages.append({"role": "assistant", "content": _text(row, "output", required=True)})
    return messages


def _history(row: dict[str, Any]) -> list[list[str]]:
    turns = [] if row.get("history") is None else row["history"]
    pairs = isinstance(turns, list) and all(
        isinstance(turn, list)
        and len(turn) == 2
        and all(isinstance(text, str) and text.strip() for text in turn)
        for turn in turns
    )
    if not pairs:
        raise RowFault("field 'history' is due as a list of [question, answer] pairs")
    return turns


@dataclass(frozen=True)
class Format:
    """A row format: its name, the fields that reveal it, all fields it reads, and its function."""

    name: str
    reveals: frozenset[str]
    reads: frozenset[str]
    convert: Callable[[dict[str, Any]], list[dict[str, str]]]


FORMATS = [
    Format(
        "alpaca",
        frozenset({"instruction", "output"}),
        frozenset({"instruction", "input", "output", "system", "history"}),
        _alpaca,
    ),
]


@dataclass
class Conversion:
    """Records, faults, and what is worth saying: the formats met and the fields that no format reads."""

    records: list[Record]
    faults: list[Fault]
    formats: dict[str, int]
    ignored_fields: dict[str, int]


def convert_rows(rows: list[Row]) -> Conversion:
    """Turn rows into records, collecting every fault."""
    result = Conversion([], [], {}, {})
    for row in rows:
        try:
            form = detect(row.value)
            messages = form.convert(row.value)
        except RowFault as fault:
            result.faults.append(Fault(row.place, str(fault)))
            continue
        result.records.append(Record(messages, row.place))
        result.formats[form.name] = result.formats.get(form.name, 0) + 1
        for field in row.value.keys() - form.reads:
            result.ignored_fields[field] = result.ignored_fields.get(field, 0) + 1
    return result


def detect(value: Any) -> Format:
    """The format of a row by its fields; RowFault where none fits."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as fault:
        where = ascii(str(fault.object)[max(0, fault.start - 20) : fault.start + 1])
        raise RowFault(f"half a surrogate pair, which is no character, stands after {where}") from None
    if not isinstance(value, dict):
        raise RowFault(f"a row is an object with named fields, this is {type(value).__name__}")
    for form in FORMATS:
        if form.reveals & value.keys():
            return form
    fields = ", ".join(sorted(map(str, value))) or "none"
    raise RowFault(f"no known format has the fields {fields}; alpaca has instruction, input, output")
