"""Say what is wrong in a spec file, where, and how to mend it."""

from __future__ import annotations

import difflib
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from images.spec import BackendSpec

KeyPath = tuple[Any, ...]


@dataclass(frozen=True)
class Fault:
    """One fault of one file: printed as `file:line: key path: what: hint`."""

    file: str
    line: int
    where: str
    what: str
    hint: str

    def __str__(self) -> str:
        place = [f"{self.file}:{self.line}", self.where] if self.where else [f"{self.file}:{self.line}"]
        return ": ".join([*place, self.what, self.hint])


def explain_fault(file: str, node: yaml.Node, error: Any) -> Fault:
    """Turn one of pydantic's errors into a fault of the file whose node tree is `node`."""
    # "[key]" is pydantic's mark for a bad key of a free mapping.
    path = tuple(part for part in error["loc"] if part != "[key]")
    what, hint = _explain(error, path, _scalar(node, path))
    return Fault(file, line_of(node, path), dotted(path), what, hint)


def _explain(error: Any, path: KeyPath, text: str | None) -> tuple[str, str]:
    """Turn one of pydantic's errors into (what, hint) in our words."""
    kind, value = error["type"], error["input"]
    field = _field(BackendSpec, path)
    wanted = _description(field)
    if kind == "extra_forbidden":
        return "unknown key", _key_hint(path)
    if kind == "missing":
        return "is missing", f"add `{path[-1]}:` ({wanted or 'see the other specs'})"
    if kind == "value_error":
        return str(error["ctx"]["error"]), "make the two agree"
    if kind == "string_type" and text is not None:
        # The classic: `python: 3.10` is the number 3.1 to YAML, `on` is true, 2026-01-01 is a date.
        return f"YAML reads {text} as the {_kind(value)} {value}, not as text", f'write "{text}" in quotes'
    return _explain_value(error, wanted)


def _explain_value(error: Any, wanted: str) -> tuple[str, str]:
    value = error["input"]
    if error["type"] == "literal_error":
        expected = error["ctx"]["expected"]
        close = difflib.get_close_matches(str(value), re.findall(r"'([^']*)'", expected), n=1)
        suggestion = f"did you mean {close[0]!r}? " if close else ""
        return f"is {value!r}", f"{suggestion}one of {expected}"
    if wanted:
        return f"is {value!r}", f"expected {wanted}"
    return f"is {value!r}: {error['msg'].lower()}", "see the other specs"


def _kind(value: Any) -> str:
    names = {bool: "truth value", int: "number", float: "number", type(None): "empty value"}
    return names.get(type(value), type(value).__name__)


def _key_hint(path: KeyPath) -> str:
    known = list(_model_fields(_field_type(BackendSpec, path[:-1])))
    close = difflib.get_close_matches(str(path[-1]), known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"keys here: {', '.join(known)}"


def _description(field: FieldInfo | None) -> str:
    if field is None:
        return ""
    inner = [getattr(item, "description", "") for item in field.metadata]
    return field.description or next(filter(None, inner), "")


# The annotation of a key path, to describe what belongs there.


def names_a_field(key: str) -> bool:
    """Tell whether a dotted key path, such as base.digest, is a field of the spec."""
    return _field(BackendSpec, tuple(key.split("."))) is not None


def _field(model: Any, path: KeyPath) -> FieldInfo | None:
    if not path or isinstance(path[-1], int):
        return None
    return _model_fields(_field_type(model, path[:-1])).get(str(path[-1]))


def _field_type(model: Any, path: KeyPath) -> Any:
    for part in path:
        fields = _model_fields(model)
        model = fields[part].annotation if part in fields else _item_type(model)
    return model


def _item_type(annotation: Any) -> Any:
    return (typing.get_args(annotation) or (None,))[-1]


def _model_fields(annotation: Any) -> dict[str, FieldInfo]:
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        annotation = next((arg for arg in typing.get_args(annotation) if arg is not type(None)), None)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation.model_fields
    return {}


# Lines and texts come from YAML's node tree, which keeps what the values lose.


def _nodes(node: yaml.Node, path: KeyPath) -> Iterator[yaml.Node]:
    yield node
    for part in path:
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
            node = node.value[part]
        elif isinstance(node, yaml.MappingNode):
            pair = next((pair for pair in node.value if pair[0].value == str(part)), None)
            if pair is None:
                return
            yield pair[0]
            node = pair[1]
        else:
            return
        yield node


def line_of(node: yaml.Node, path: KeyPath) -> int:
    """Return the line, from 1, of the deepest part of a key path that the file has."""
    *_, last = _nodes(node, path)
    return last.start_mark.line + 1


def _scalar(node: yaml.Node, path: KeyPath) -> str | None:
    *_, last = _nodes(node, path)
    return last.value if isinstance(last, yaml.ScalarNode) else None


def dotted(path: KeyPath) -> str:
    """Write a key path as people do: torch.hashes[0].python."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")
