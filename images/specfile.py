"""Read `backends/*.yaml` strictly: every fault of every file at once, each with its line and cure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from pathlib import Path

import yaml
from pydantic import ValidationError
from yaml.constructor import SafeConstructor

from images import compatibility
from images.errors import EXIT_CONFIG, EXIT_USAGE, UserError
from images.faults import Fault, KeyPath, dotted, explain_fault, line_of, names_a_field
from images.spec import IMAGES, ROOT, BackendSpec
from images.variants import variant_nodes

BACKENDS = IMAGES / "backends"
STACK_FILE = "images/stack/train.txt"
# libyaml's parser where PyYAML was built with it: a tenth of the time, and `list` is asked often.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load_specs(folder: Path = BACKENDS) -> dict[str, BackendSpec]:
    """Read every spec of a folder: name of the image -> spec, the default variant of each backend first.

    Raises UserError with all faults of all files.
    """
    read: list[BackendSpec] = []
    faults: list[Fault] = []
    for path in sorted(folder.glob("*.yaml")):
        found, wrong = read_spec(path)
        read += found
        faults += wrong
    faults += _name_clashes(read)
    faults += _stack_clashes(read)
    if faults:
        raise UserError(
            "\n".join(map(str, faults)), "every key is described in images/spec.py", exit_code=EXIT_CONFIG
        )
    return {spec.image: spec for spec in read}


def find_spec(name: str, specs: dict[str, BackendSpec], variant: str | None = None) -> BackendSpec:
    """Return the spec of a backend's name or alias, and of a variant; raises UserError with a suggestion."""
    known = {alias: spec.name for spec in specs.values() for alias in (spec.name, *spec.aliases)}
    if name not in known:
        raise _unknown("backend", name, list(known))
    variants = {spec.variant: spec for spec in specs.values() if spec.name == known[name]}
    if variant is None:
        return next(spec for spec in variants.values() if spec.is_default)
    if variant in variants:
        return variants[variant]
    if None in variants:
        raise UserError(f"--variant: {known[name]} has no variants", "leave --variant out", EXIT_USAGE)
    raise _unknown("variant", variant, [str(known) for known in variants], f" of {known[name]}")


def _unknown(kind: str, given: str, known: list[str], where: str = "") -> UserError:
    close = difflib.get_close_matches(given, known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    message = f"--{kind}: unknown {kind} {given!r}{where}"
    return UserError(message, f"{hint}known: {', '.join(known)}", EXIT_USAGE)


def read_spec(path: Path) -> tuple[list[BackendSpec], list[Fault]]:
    """Read one spec file: the spec of each variant, the default one first, and what is wrong with them.

    There is no spec where a key is wrong; there is one where only versions do not go together.
    """
    file = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
    try:
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=LOADER)
    except yaml.YAMLError as error:
        return [], [_syntax_fault(file, error)]
    if not isinstance(node, yaml.MappingNode):
        return [], [Fault(file, 1, "", "is not a mapping of keys", "begin with `name: ...`")]
    faults = [_duplicate_fault(file, *found) for found in _duplicate_keys(node)]
    variants, wrong = variant_nodes(file, node)
    faults += wrong
    read = []
    for variant in variants:
        spec, wrong = _read_variant(path, file, variant)
        read += [(variant, spec)] if spec else []
        faults += wrong
    clashes = [] if faults else [fault for variant, spec in read for fault in _clashes(file, variant, spec)]
    # What is wrong in the main part is wrong in each variant: say it once.
    return ([] if faults else [spec for _, spec in read]), list(dict.fromkeys([*faults, *clashes]))


def _read_variant(path: Path, file: str, node: yaml.MappingNode) -> tuple[BackendSpec | None, list[Fault]]:
    faults = list(_strange_sources(file, node))
    try:
        spec = BackendSpec.model_validate(SafeConstructor().construct_document(node))
    except ValidationError as error:
        return None, faults + [explain_fault(file, node, item) for item in error.errors(include_url=False)]
    if spec.name != path.stem:
        what = f"is {spec.name!r} in {path.name}"
        faults.append(Fault(file, line_of(node, ("name",)), "name", what, "rename one of the two"))
    return spec, faults


def _clashes(file: str, node: yaml.MappingNode, spec: BackendSpec) -> Iterator[Fault]:
    """Yield what of a spec contradicts the table of versions that go together, given the shared stack."""
    for clash in compatibility.clashes([*compatibility.spec_facts(spec), *compatibility.stack_facts()]):
        if isinstance(clash.fact.where, tuple):
            path = clash.fact.where
            yield Fault(file, line_of(node, path), dotted(path), clash.what, clash.cure)


def _stack_clashes(specs: list[BackendSpec]) -> Iterator[Fault]:
    """Yield what of the shared stack contradicts the table, given every spec's torch and Python."""
    facts = dict.fromkeys([fact for spec in specs for fact in compatibility.spec_facts(spec)])
    shared = [fact for fact in facts if fact.component in ("python", "torch")]
    for clash in compatibility.clashes([*shared, *compatibility.stack_facts()]):
        if isinstance(clash.fact.where, int):
            yield Fault(STACK_FILE, clash.fact.where, clash.fact.component, clash.what, clash.cure)


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


def _name_clashes(specs: list[BackendSpec]) -> Iterator[Fault]:
    """Yield a fault for each name, alias or image that two specs share: folders and tags are named so."""
    owner: dict[str, str] = {}
    for spec in specs:
        for name in (spec.name, *spec.aliases) if spec.is_default else (spec.image,):
            if name in owner:
                what = f"{name!r} is taken by {owner[name]}.yaml"
                where = "aliases" if spec.is_default else f"variants.{spec.variant}"
                hint = "names, aliases and images are unique"
                yield Fault(f"images/backends/{spec.name}.yaml", 1, where, what, hint)
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
