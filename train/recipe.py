"""From a YAML file and the command line to the recipe, with every fault at its place."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from train.config import RunConfig, known_fields
from train.errors import EXIT_CONFIG, EXIT_USAGE, UserError, reading
from train.old_names import translate

SHOWN = 200
"""Characters of a wrong value that are told."""
Given = dict[tuple[Any, ...], tuple[str, Any]]
"""Path of a field -> (where it is said, its value)."""


class _UniqueKeys(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys without a word; here the second one is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def recipe_path(given: Path) -> Path:
    """The file of a recipe: the path as given, or the recipe of that name which ships with isotune."""
    shipped = Path(__file__).parent / "recipes" / f"{given}.yaml"
    with reading(given, "--config takes a YAML file, or the name of a recipe that ships"):
        is_shipped = not given.exists() and len(given.parts) == 1 and shipped.exists()
        return shipped if is_shipped else given


def read_recipe(path: Path) -> dict[str, Any]:
    """The mapping in a YAML recipe; UserError with the line for anything else."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8-sig"), _UniqueKeys)
    except OSError as fault:
        names = ", ".join(
            sorted(shipped.stem for shipped in (Path(__file__).parent / "recipes").glob("*.yaml"))
        )
        hint = f"--config takes a YAML file, or one of {names}"
        empty = " (or --config is empty: an unset variable?)" if path == Path() else ""
        raise UserError(f"{path}: cannot be read: {fault.strerror}{empty}", hint, EXIT_CONFIG) from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8 text", "save the recipe as UTF-8", EXIT_CONFIG) from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as fault:
        mark = getattr(fault, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = getattr(fault, "problem", None) or str(fault).splitlines()[0]
        hint = (
            "indent with spaces, give each key once, quote text that has `: ` or begins with a special sign"
        )
        raise UserError(f"{place}: not a valid recipe: {problem}", hint, EXIT_CONFIG) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(
            f"{path}: a recipe is a mapping of keys to values", "train --json-schema lists them", EXIT_CONFIG
        )
    return content


def parse_assignment(text: str) -> tuple[str, Any]:
    """`lora.r=16` as its dotted key and its value, read as YAML."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise UserError(f"--set {text}: KEY=VALUE is due", "for example --set lora.r=16", EXIT_USAGE)
    try:
        return key.strip(), yaml.safe_load(value)
    except (yaml.YAMLError, ValueError, RecursionError):
        return key.strip(), value


def build_config(recipe: Path | None, flags: dict[str, Any], assignments: list[str]) -> RunConfig:
    """The run's configuration; the command line wins over the file. Every fault is reported at once.

    `flags`: field name -> value, None where not given. `assignments`: the texts of `--set`.
    """
    recipe = recipe_path(recipe) if recipe else None
    notes: list[str] = []
    faults: list[str] = []
    in_file = _parts(read_recipe(recipe), recipe) if recipe else {}
    values: dict[str, Any] = {}
    origins: dict[tuple[Any, ...], str] = {}
    for path, (origin, value) in _renamed(in_file, notes, faults).items():
        _insert(values, path, value, origin)
        if path not in in_file:
            origins[path] = origin
    given: Given = {
        (name,): (f"--{name.replace('_', '-')}", value) for name, value in flags.items() if value is not None
    }
    for text in assignments:
        key, value = parse_assignment(text)
        path = tuple(key.split("."))
        if path in given:
            raise UserError(
                f"--set {text}: {key} is already given by {given[path][0]}", "give it once", EXIT_USAGE
            )
        given[path] = (f"--set {key}", value)
    given = _renamed(given, notes, faults)
    for path, (origin, value) in given.items():
        _insert(values, path, value, origin)
        origins[path] = origin
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as invalid:
        faults += [_fault_line(dict(fault), origins, recipe) for fault in invalid.errors()]
    if faults:
        raise UserError("\n".join(faults), "train --json-schema lists every field", EXIT_CONFIG)
    if notes:
        print("\n".join(notes), flush=True)
    _refuse_unused(config.adapter, given)
    return config


def _parts(values: dict[str, Any], recipe: Path | None) -> Given:
    """The fields of a file, those of an adapter's settings each for itself."""
    found: Given = {}
    for name, value in values.items():
        if name in ("lora", "oft") and isinstance(value, dict) and value:
            found |= {(name, below): (f"{recipe}: {name}.{below}", one) for below, one in value.items()}
        else:
            found[name,] = (f"{recipe}: {name}", value)
    return found


def _renamed(given: Given, notes: list[str], faults: list[str]) -> Given:
    """The same with fields in place of old names, which stay their origin; what is to be said of them is
    added to `notes` and `faults`.
    """
    known, renamed = known_fields(), dict(given)
    for path, (origin, value) in given.items():
        key = _dotted(path)
        beside = {_dotted(one) for one in renamed if one != path}
        found = None if key in known else translate(key, value, beside)
        if found is None:
            continue
        del renamed[path]
        if found.fault:
            faults.append(f"{origin}: {found.fault}")
            continue
        notes.append(f"note: {origin.removesuffix(key)}{found.note}")
        if found.new:
            renamed[tuple(found.new.split("."))] = (origin, found.value)
    return renamed


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(map(str, path))


def _refuse_unused(adapter: str, given: Given) -> None:
    """A recipe may hold the settings of both adapters; on the command line those of the other one are
    a mistake.
    """
    unused = [
        origin for path, (origin, _) in given.items() if path[0] in ("lora", "oft") and path[0] != adapter
    ]
    if unused:
        lines = [f"{origin}: has no effect, the adapter is {adapter}" for origin in unused]
        raise UserError("\n".join(lines), "name the adapter's own settings", EXIT_CONFIG)


def _insert(values: dict[str, Any], path: tuple[Any, ...], value: Any, origin: str) -> None:
    for name in path[:-1]:
        below = values[name] = values.get(name) or {}
        if not isinstance(below, dict):
            hint = f"give {name} one value; train --json-schema lists every field"
            raise UserError(f"{origin}: {name} has no fields of its own", hint, EXIT_CONFIG)
        values = below
    values[path[-1]] = value


def _fault_line(fault: dict[str, Any], origins: dict[tuple[Any, ...], str], recipe: Path | None) -> str:
    path = tuple(str(part) for part in fault["loc"])
    origin = next((name for key, name in origins.items() if path[: len(key)] == key), None)
    place = origin or (
        f"{recipe}: {'.'.join(path)}"
        if recipe and (fault["type"] != "missing" or len(path) > 1)
        else ".".join(path)
    )
    if origin and path[0] == "data" and len(path) > 1:  # which of the sources
        place = f"{origin}: {'.'.join(path)}"
    if fault["type"] == "extra_forbidden":
        return f"{place}: no such field{_suggest(path)}"
    if fault["type"] == "missing" and len(path) > 1:
        return f"{place}: not given"
    if fault["type"] == "missing":
        return f"{place}: not given; --{path[-1].replace('_', '-')} or the recipe must say it"
    message = fault["msg"].removeprefix("Value error, ")
    if isinstance(fault["input"], dict):  # fields that contradict each other: the message has their values
        return f"{place}: {message}" if place else message
    if path[0] == "eval_data" and fault["type"] == "value_error":  # the message has the values
        return f"{place}: {message}"
    return f"{place}: {message}, not {_shown(fault['input'])}"


def _shown(value: Any) -> str:
    """A value as it was given; the beginning of a long one, and its length."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"


def _suggest(path: tuple[str, ...]) -> str:
    fields = known_fields()
    wanted = ".".join(path)
    near = difflib.get_close_matches(wanted, fields, n=1, cutoff=0.6)
    by_last = [field for field in fields if field.split(".")[-1] == path[-1]]
    match = (by_last or near or [""])[0]
    return f"; did you mean {match}?" if match else ""
