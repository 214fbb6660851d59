"""Rows of a JSON or JSONL file, each with its place. No type inference: a value arrives as it was written."""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.errors import EXIT_DATA, UserError

_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True)
class Row:
    """One row as read: its value, and `file:line` where it starts."""

    value: Any
    place: str


@dataclass(frozen=True)
class Fault:
    """What is wrong with a row, and where."""

    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


def read_rows(path: Path) -> tuple[list[Row], list[Fault]]:
    """All rows of a file and the faults of those that cannot be read.

    A JSON array and JSON lines are told apart by the first character, not by the file's name.
    Raises UserError where the file as a whole cannot be read.
    """
    text = read_text(path)
    if text.lstrip()[:1] == "[":
        return _read_array(path, text)
    return _read_lines(path, text)


def read_text(path: Path) -> str:
    """The file as text: UTF-8 with or without BOM, or UTF-16 with one; anything else is refused with
    the cure.
    """
    try:
        content = path.read_bytes()
    except OSError as fault:
        raise UserError(
            f"{path}: cannot be read: {fault.strerror}", "--data takes a .jsonl or .json file", EXIT_DATA
        ) from None
    encoding = "utf-16" if content.startswith(_UTF16) else "utf-8-sig"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as fault:
        line = content.count(b"\n", 0, fault.start) + 1
        guess = _guess_encoding(content)
        hint = f"iconv -f {guess} -t UTF-8 {path} > utf8-{path.name}" if guess else "save the file as UTF-8"
        looks = f"; it looks like {guess}" if guess else ""
        raise UserError(f"{path}:{line}: is not UTF-8 text{looks}", hint, EXIT_DATA) from None


def hash_file(path: Path) -> str:
    """sha256 of a file's content, as `sha256:<hex>`."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return f"sha256:{digest.hexdigest()}"


def _guess_encoding(content: bytes) -> str:
    for encoding in ("GB18030", "BIG5", "SHIFT_JIS"):
        try:
            content.decode(encoding)
        except UnicodeDecodeError:
            continue
        return encoding
    return ""


def _read_lines(path: Path, text: str) -> tuple[list[Row], list[Fault]]:
    rows, faults = [], []
    # Not splitlines(): it would cut a row at a U+2028 inside a string.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        place = f"{path}:{number}"
        try:
            rows.append(Row(_loads(line), place))
        except (ValueError, RecursionError) as fault:
            faults.append(Fault(place, f"is not valid JSON: {_short(fault)}"))
    return rows, faults


def _read_array(path: Path, text: str) -> tuple[list[Row], list[Fault]]:
    """Rows of one JSON array, read one by one so that each has a line. A syntax error ends the reading."""
    rows: list[Row] = []
    line, counted = 1, 0
    for start, value in _array_elements(text):
        line, counted = line + text.count("\n", counted, start), start
        if isinstance(value, ValueError):
            return rows, [
                Fault(
                    f"{path}:{line}", f"is not valid JSON: {_short(value)}; the rows after it were not read"
                )
            ]
        rows.append(Row(value, f"{path}:{line}"))
    return rows, []


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


def _loads(line: str) -> Any:
    text = line.strip()
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
