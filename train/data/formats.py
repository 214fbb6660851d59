"""Row formats, one function each in one table: a row becomes the messages that the chat template takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from train.data.messages import check_order, read_turns
from train.data.records import Fault, Row
from train.data.tools import RowFault, listed, read_tools, said

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Record:
    """A conversation and the place of its row; the last message is an answer.

    `messages`: dicts with `role` (system, user, assistant, tool) and `content` (text, never None); an
    assistant may have `tool_calls` with arguments as objects, and `reasoning_content`. `tools`: what may be
    called.
    """

    messages: list[Message]
    place: str
    tools: list[dict[str, Any]] | None = None


def _text(row: dict[str, Any], name: str, required: bool) -> str:
    value = row.get(name)
    if value is None and not required:
        return ""
    if not isinstance(value, str):
        given = "is missing" if name not in row else f"is {said(value)}, text is due"
        raise RowFault(f"field {name!r} {given}")
    if required and not value.strip():
        raise RowFault(f"field {name!r} is empty")
    return value


def _system(row: dict[str, Any], messages: list[Message]) -> list[Message]:
    """The messages, the row's own `system` text before them."""
    given = _text(row, "system", required=False)
    if given and messages[0]["role"] == "system":
        raise RowFault("field 'system' and a system message: one of them is due")
    return [{"role": "system", "content": given}, *messages] if given else messages


def _alpaca(row: dict[str, Any], ignored: set[str]) -> list[Message]:
    """instruction, input (may be empty or missing), output; system and history where given."""
    messages = []
    for turn in _history(row):
        messages += [{"role": "user", "content": turn[0]}, {"role": "assistant", "content": turn[1]}]
    instruction = _text(row, "instruction", required=True)
    given = _text(row, "input", required=False)
    messages.append({"role": "user", "content": f"{instruction}\n{given}" if given else instruction})
    messages.append({"role": "assistant", "content": _text(row, "output", required=True)})
    return messages


def _history(row: dict[str, Any]) -> list[list[str]]:
    given = row.get("history")
    if isinstance(given, str) and given.startswith("["):  # a cell of a table
        given = listed(row, "history")
    turns = [] if given is None or given == "" else given
    pairs = isinstance(turns, list) and all(
        isinstance(turn, list)
        and len(turn) == 2
        and all(isinstance(text, str) and text.strip() for text in turn)
        for turn in turns
    )
    if not pairs:
        raise RowFault("field 'history' is due as a list of [question, answer] pairs")
    return turns


def _messages(row: dict[str, Any], ignored: set[str]) -> list[Message]:
    """OpenAI's: messages with role and content."""
    return read_turns(row, "messages", ignored)


def _sharegpt(row: dict[str, Any], ignored: set[str]) -> list[Message]:
    """conversations with from and value (or role and content)."""
    return read_turns(row, "conversations", ignored)


def _prompt_completion(row: dict[str, Any], ignored: set[str]) -> list[Message]:
    """prompt and completion, each a text or a list of messages."""
    sides: list[list[Message]] = []
    for name, role in (("prompt", "user"), ("completion", "assistant")):
        if isinstance(row.get(name), list):
            sides.append(read_turns(row, name, ignored))
        else:
            sides.append([{"role": role, "content": _text(row, name, required=True)}])
    if wrong := [message["role"] for message in sides[1] if message["role"] not in ("assistant", "tool")]:
        raise RowFault(f"field 'completion' holds a message of {wrong[0]}: those belong to 'prompt'")
    if sides[0][-1]["role"] == "assistant":
        raise RowFault("field 'prompt' ends with an answer: a question is due, or a tool's result")
    return [*sides[0], *sides[1]]


@dataclass(frozen=True)
class Format:
    """A row format: its name, the fields of which any reveals it, those that it needs, all that it reads
    (with COMMON), and its function, which adds to its second argument what it found and does not read.
    """

    name: str
    reveals: frozenset[str]
    needs: frozenset[str]
    reads: frozenset[str]
    convert: Callable[[dict[str, Any], set[str]], list[Message]]


def _format(name: str, needs: str, convert: Callable[..., list[Message]], more: str = "") -> Format:
    needed = frozenset(needs.split())
    return Format(name, needed, needed, needed | COMMON | frozenset(more.split()), convert)


COMMON = frozenset({"system", "tools", "functions"})
FORMATS = [
    _format("messages", "messages", _messages),
    _format("sharegpt", "conversations", _sharegpt),
    _format("alpaca", "instruction output", _alpaca, "input history"),
    _format("prompt/completion", "prompt completion", _prompt_completion),
]
"""In this order: a row that fits two formats is of the first one, which is said; what the second would read
is then among the fields that are not read."""
MEDIA = ("images", "image", "videos", "video", "audios", "audio")


@dataclass
class Conversion:
    """Records, faults, and what is worth saying: the rows, the formats met, the fields that are not read."""

    records: list[Record] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    formats: dict[str, int] = field(default_factory=dict)
    ignored_fields: dict[str, int] = field(default_factory=dict)
    num_rows: int = 0
    """Rows that could be read, faulty ones among them."""


def convert_rows(rows: Iterable[Row | Fault]) -> Conversion:
    """Turn rows into records one at a time, collecting every fault."""
    result = Conversion()
    for row in rows:
        if isinstance(row, Fault):
            result.faults.append(row)
            continue
        result.num_rows += 1
        ignored: set[str] = set()
        try:
            name, record = convert_row(row, ignored)
        except RowFault as fault:
            result.faults.append(Fault(row.place, str(fault)))
            continue
        result.records.append(record)
        result.formats[name] = result.formats.get(name, 0) + 1
        for key in ignored:
            result.ignored_fields[key] = result.ignored_fields.get(key, 0) + 1
    return result


def convert_row(row: Row, ignored: set[str]) -> tuple[str, Record]:
    """A row's format, named with the others that it fits too, and its record; RowFault where it has none."""
    form = detect(row.value)
    messages = _system(row.value, form.convert(row.value, ignored))
    check_order(messages, "/".join(sorted(form.needs & row.value.keys())))
    record = Record(messages, row.place, read_tools(row.value))
    keys = {key for key, value in row.value.items() if value is not None}
    ignored.update(keys - form.reads)
    others = [other.name for other in FORMATS if other is not form and other.needs <= keys]
    return (f"{form.name} rather than {' or '.join(others)}" if others else form.name), record


def detect(value: Any) -> Format:
    """The format of a row by its fields; RowFault where none fits."""
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode("utf-8")
    except UnicodeEncodeError as fault:
        where = ascii(str(fault.object)[max(0, fault.start - 20) : fault.start + 1])
        raise RowFault(f"half a surrogate pair, which is no character, stands after {where}") from None
    if not isinstance(value, dict):
        raise RowFault(f"a row is an object with named fields, this is {type(value).__name__}")
    if found := [name for name in MEDIA if value.get(name)]:
        raise RowFault(f"field {found[0]!r} is given: only text is read so far")
    for form in FORMATS:
        if any(value.get(name) is not None for name in form.reveals):
            return form
    fields = ", ".join(sorted(map(str, value))) or "none"
    known = "; ".join(f"{form.name} has {', '.join(sorted(form.needs))}" for form in FORMATS)
    raise RowFault(f"no known format has the fields {fields}; {known}")
