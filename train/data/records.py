"""Rows of JSON and JSONL files, each with its place. No type inference: a value arrives as it was written."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.data.text import open_text, read_text

_HEAD = 4096
"""Characters that are looked at to tell an array from lines."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row as read: its value, and `file:line` where it starts (`file:row N` in a binary table)."""

    value: Any
    place: str


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a row, and where."""

    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"

    def position(self) -> tuple[str, int]:
        """The file and the line or row in it: faults are told in this order."""
        found = re.fullmatch(r"(.*):(?:row )?(\d+)", self.place, re.DOTALL)
        return (found[1], int(found[2])) if found else (self.place, 0)


def read_json(path: Path) -> Iterator[Row | Fault]:
    """The rows of a JSON or JSONL file, one by one; a Fault in place of a row that cannot be read.

    A JSON array and JSON lines are told apart by the first character, not by the file's name. Lines are not
    held in memory, an array's text is, once. Raises UserError where the file as a whole cannot be read.
    """
    head, line = "", 1
    with open_text(path) as file:
        while not head and (piece := file.read(_HEAD)):
            head = piece.lstrip()
            line += piece[: len(piece) - len(head)].count("\n")
    if head.startswith("["):
        yield from _read_array(path, read_text(path))
    elif re.match(r'\{\s*\n\s*"', head):
        reason = "is one object over several lines, which were not read: one row a line is due, or [rows]"
        yield Fault(f"{path}:{line}", reason)
    else:
        with open_text(path) as file:
            yield from _read_lines(path, file)


def hash_file(path: Path) -> str:
    """sha256 of a file's content, as `sha256:<hex>`."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return f"sha256:{digest.hexdigest()}"


def _read_lines(path: Path, lines: Iterable[str]) -> Iterator[Row | Fault]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            yield Row(loads(line), place)
        except (ValueError, RecursionError) as fault:
            yield Fault(place, f"is not valid JSON: {_short(fault)}")


def _read_array(path: Path, text: str) -> Iterator[Row | Fault]:
    """Rows of one JSON array, read one by one so that each has a line. A syntax error ends the reading."""
    line, counted = 1, 0
    for start, value in _array_elements(text):
        line, counted = line + text.count("\n", counted, start), start
        place = f"{path}:{line}"
        if isinstance(value, ValueError):
            yield Fault(place, f"is not valid JSON: {_short(value)}; the rows after it were not read")
            return
        yield Row(value, place)


def _array_elements(text: str) -> Iterator[tuple[int, Any]]:
    """(position, value) of each element; a ValueError as the value where the text is not JSON."""
    position = _skip_space(text, text.index("[") + 1)
    if text[position : position + 1] == "]":
        return
    while True:
        try:
            value, end = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError) as fault:
            yield position, ValueError(_short(fault))
            return
        yield position, value
        end = _skip_space(text, end)
        if text[end : end + 1] == "]":
            if text[end + 1 :].strip():
                yield _skip_space(text, end + 1), ValueError("there is text after the array's end")
            return
        if text[end : end + 1] != ",":
            yield min(end, len(text)), ValueError("a comma or the array's end is missing")
            return
        position = _skip_space(text, end + 1)


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"key {twice!r} is given twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_constant=_no_constant)


def loads(text: str) -> Any:
    """One JSON value and nothing after it. ValueError also for NaN and for a key that is given twice."""
    text = text.strip()
    value, end = _DECODER.raw_decode(text)
    if text[end:].strip():
        raise ValueError(f"there is text after the row's end: {text[end:].strip()[:20]!r}")
    return value


def _short(fault: Exception) -> str:
    if isinstance(fault, RecursionError):
        return "it is nested too deep"
    if isinstance(fault, json.JSONDecodeError):
        return f"{fault.msg} (column {fault.colno})"
    return str(fault)
