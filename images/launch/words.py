"""Read the options of a launch from flags and --set: every wrong word at once."""

from __future__ import annotations

import argparse
import difflib
import types
import typing
from typing import Any

from pydantic.fields import FieldInfo

from images.launch.options import SHAPES, LaunchOptions
from images.options import Parser
from images.selection import add_selection

FIELDS = LaunchOptions.model_fields


def flag(name: str) -> str:
    """Return the option of a field: eval_data -> --eval-data."""
    return f"--{name.replace('_', '-')}"


def launch_parser() -> Parser:
    """Return the parser: an option for each field of the model."""
    parser = Parser(
        prog="build.py launch",
        description="Print one ready file that starts a training job.",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    add_selection(parser)
    parser.add_argument("--as", dest="shape", metavar="SHAPE", help=f"what to print: {', '.join(SHAPES)}")
    for name, info in FIELDS.items():
        parser.add_argument(flag(name), **_argument(name, info))
    what = "any of these options by name, with dots before keys: nodes=2, env.NCCL_DEBUG=INFO"
    parser.add_argument("--set", action="append", dest="assignments", metavar="KEY=VALUE", help=what)
    return parser


def unknown_words(words: list[str]) -> list[str]:
    """Return what is wrong with words that are no options; the value behind one belongs to it."""
    first = [word for before, word in zip(["", *words], words, strict=False) if not _is_value(before, word)]
    return [_unknown(word) for word in first]


def _is_value(before: str, word: str) -> bool:
    return before.startswith("--") and "=" not in before and not word.startswith("-")


def _unknown(word: str) -> str:
    close = difflib.get_close_matches(word.partition("=")[0], ["--as", *map(flag, FIELDS)], n=1)
    cure = f"did you mean {close[0]}?" if close else "build.py launch --help"
    return f"{word}: is no option; {cure}"


def _argument(name: str, info: FieldInfo) -> dict[str, Any]:
    settings: dict[str, Any] = {"help": info.description}
    kind = container_kind(info)
    if info.annotation is bool:
        return settings | {"action": argparse.BooleanOptionalAction}
    # All are collected, also those that hold one value: argparse would keep the last in silence.
    return settings | {"action": "append", "metavar": "KEY=VALUE" if kind is dict else "VALUE"}


def container_kind(info: FieldInfo) -> type | None:
    """Return dict or list for a field that holds several values, else None."""
    annotation: Any = info.annotation
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        annotation = next(arg for arg in typing.get_args(annotation) if arg is not type(None))
    origin = typing.get_origin(annotation)
    return origin if origin in (dict, list) else None


def read_words(options: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Return field -> value as text, and what is wrong with the words themselves."""
    faults: list[str] = []
    given: list[tuple[str, str, Any]] = []  # (how it was given, field, value)
    for name in FIELDS:
        value = getattr(options, name, None)
        if value is not None:
            values = value if isinstance(value, list) else [value]
            given += [(flag(name), name, item) for item in values]
    for text in getattr(options, "assignments", []):
        (key, value), fault = _assigned(text)
        faults += [fault] if fault else []
        given += [] if fault else [(f"--set {key}", key, value)]
    found: dict[str, Any] = {}
    for how, name, value in given:
        faults += _add(found, how, name, value)
    return found, faults


def _assigned(text: str) -> tuple[tuple[str, str], str]:
    """Take KEY=VALUE apart; a key of a field with several values is FIELD.KEY."""
    key, equals, value = text.partition("=")
    field, dot, rest = key.partition(".")
    name = field.strip().replace("-", "_")
    if not equals:
        return ("", ""), f"--set {text}: has no `=`; write KEY=VALUE"
    if name not in FIELDS:
        close = difflib.get_close_matches(name, FIELDS, n=1)
        cure = f"did you mean {close[0]}?" if close else "build.py launch --help lists the keys"
        return ("", ""), f"--set {key}: unknown key; {cure}"
    if container_kind(FIELDS[name]) is dict:
        if not dot:
            return ("", ""), f"--set {text}: needs a key of its own; write {name}.KEY=VALUE"
        # Keys may hold dots, and labels slashes: all up to the first `=`.
        return (name, f"{rest}={value}"), ""
    return ((name, value), "") if not dot else (("", ""), f"--set {key}: {name} has no keys below it")


def _add(found: dict[str, Any], how: str, name: str, value: Any) -> list[str]:
    kind = container_kind(FIELDS[name])
    if kind is dict:
        key, equals, text = str(value).partition("=")
        if not equals or not key:
            return [f"{how} {value}: write KEY=VALUE"]
        table = found.setdefault(name, {})
        faults = [f"{how} {key}: is given twice; give it once"] if key in table else []
        table[key] = text
        return faults
    if kind is list:
        found.setdefault(name, []).extend(item.strip() for item in str(value).split(",") if item.strip())
        return []
    if name in found:
        return [f"{flag(name)}: is given twice; give it once"]
    found[name] = value
    return []
