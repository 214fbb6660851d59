"""Read `backends/*.yaml` strictly: every fault of every file at once, each with its line and cure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

import yaml
from pydantic import ValidationError

from images.errors import EXIT_CONFIG, EXIT_USAGE, UserError
from images.faults import Fault, KeyPath, dotted, explain_fault, line_of, names_a_field
from images.spec import IMAGES, ROOT, BackendSpec

BACKENDS = IMAGES / "backends"
# libyaml's parser where PyYAML was built with it: a tenth of the time, and `list` is asked often.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_specs(folder: Path = BACKENDS) -> dict[str, BackendSpec]:
    """Read every spec of a folder; raises UserError with all faults of all files."""
    specs: dict[str, BackendSpec] = {}
    faults: list[Fault] = []
    for path in sorted(folder.glob("*.yaml")):
        spec, found = read_spec(path)
        faults += found
        if spec:
            specs[spec.name] = spec
    faults += _name_clashes(specs)
    if faults:
        raise UserError(
            "\n".join(map(str, faults)), "every key is described in images/spec.py", exit_code=EXIT_CONFIG
        )
    return specs


def find_spec(name: str, specs: dict[str, BackendSpec]) -> BackendSpec:
    """Return the spec that has this name or alias; raises UserError with a suggestion."""
    known = {alias: spec for spec in specs.values() for alias in (spec.name, *spec.aliases)}
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise UserError(f"--backend: unknown backend {name!r}", f"{hint}known: {', '.join(known)}", EXIT_USAGE)


def read_spec(path: Path) -> tuple[BackendSpec | None, list[Fault]]:
    """Read one spec file: the spec, or None and what is wrong with it."""
    file = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=LOADER)
    except yaml.YAMLError as error:
        return None, [_syntax_fault(file, error)]
    if not isinstance(node, yaml.MappingNode):
        return None, [Fault(file, 1, "", "is not a mapping of keys", "begin with `name: ...`")]
    faults = [_duplicate_fault(file, *found) for found in _duplicate_keys(node)]
    faults += _strange_sources(file, node)
    try:
        spec = BackendSpec.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        return None, faults + [explain_fault(file, node, item) for item in error.errors(include_url=False)]
    if spec.name != path.stem:
        what = f"is {spec.name!r} in {path.name}"
        faults.append(Fault(file, line_of(node, ("name",)), "name", what, "rename one of the two"))
    return (None if faults else spec), faults


def _strange_sources(file: str, node: yaml.MappingNode) -> Iterator[Fault]:
    """Yield the keys of `sources` that are no key path: from the text, so that no other fault hides them."""
    mappings = [value for key, value in node.value if key.value == "sources"]
    for key in [
        pair[0].value for mapping in mappings if isinstance(mapping.value, list) for pair in mapping.value
    ]:
        if not names_a_field(str(key)):
            line = line_of(node, ("sources", key))
            hint = "name a key path of this file, such as base.digest"
            yield Fault(file, line, f"sources.{key}", "is the source of a key that does not exist", hint)


def _name_clashes(specs: dict[str, BackendSpec]) -> Iterator[Fault]:
    owner: dict[str, str] = {}
    for spec in specs.values():
        for name in (spec.name, *spec.aliases):
            if name in owner:
                what = f"{name!r} is taken by {owner[name]}.yaml"
                yield Fault(
                    f"images/backends/{spec.name}.yaml", 1, "aliases", what, "names and aliases are unique"
                )
            owner[name] = spec.name


def _syntax_fault(file: str, error: yaml.YAMLError) -> Fault:
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or str(error).splitlines()[0]
    hint = "indent with spaces, quote text that has `: ` or starts with a special character"
    return Fault(file, mark.line + 1 if mark else 1, "", f"is not YAML: {what}", hint)


def _duplicate_keys(node: yaml.Node, path: KeyPath = ()) -> Iterator[tuple[KeyPath, int, int]]:
    """Yield (key path, line, line of the first) of keys given twice: YAML would keep the last silently."""
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _duplicate_keys(item, (*path, index))
    if not isinstance(node, yaml.MappingNode):
        return
    seen: dict[str, int] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if key.value in seen:
            yield (*path, key.value), line, seen[key.value]
        seen.setdefault(key.value, line)
        yield from _duplicate_keys(value, (*path, key.value))


def _duplicate_fault(file: str, path: KeyPath, line: int, first: int) -> Fault:
    return Fault(file, line, dotted(path), f"is given twice, first in line {first}", "keep one of them")
