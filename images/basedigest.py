"""`lock --resolve-base`: ask the registry for the digest of a base image and write it into its spec."""

from __future__ import annotations

import datetime
from pathlib import Path

import yaml

from images.errors import EXIT_CONFIG, EXIT_DATA, UserError
from images.sources import base_address, parse_mirrors
from images.spec import BackendSpec
from images.spec_types import UNRESOLVED
from images.specfile import BACKENDS, LOADER


def resolve_base(spec: BackendSpec, mirrors: list[str]) -> list[str]:
    """Fill in an unresolved digest, or compare a known one; returns lines that say what was found.

    Raises UserError (65) if the registry has another digest under the tag: a person must say which is meant.
    """
    from images.engine import registry_digest

    unpinned = spec.model_copy(update={"base": spec.base.model_copy(update={"digest": UNRESOLVED})})
    address = base_address(unpinned, None, parse_mirrors(mirrors))
    found = registry_digest(address)
    if spec.base.digest == found:
        return [f"{spec.image}: the registry has the digest of the spec: {found}"]
    if spec.base.digest != UNRESOLVED:
        message = f"{spec.image}: the registry has {found} as {address}, the spec {spec.base.digest}"
        hint = "a tag moves: keep the digest, or write `digest: unresolved` in the spec and resolve again"
        raise UserError(message, hint, EXIT_DATA)
    source = f"the registry's answer on {datetime.date.today().isoformat()}"
    write_base(BACKENDS / f"{spec.name}.yaml", spec, {"digest": found, "source": source, "confidence": "P"})
    return [f"{spec.image}: {address} is {found}, written to images/backends/{spec.name}.yaml"]


def write_base(path: Path, spec: BackendSpec, values: dict[str, str]) -> None:
    """Replace values of a spec's `base` where they stand in its file; all else stays as it was written."""
    text = path.read_text(encoding="utf-8")
    root = yaml.compose(text, Loader=LOADER)
    assert isinstance(root, yaml.MappingNode), "it was read as a spec"
    base = _base_node(root, spec)
    nodes = {key.value: value for key, value in base.value}
    missing = [name for name in values if name not in nodes]
    if missing:
        where = f"images/backends/{path.name}:{base.start_mark.line + 1}"
        raise UserError(f"{where}: base of {spec.image}: has no {', '.join(missing)}", "add it", EXIT_CONFIG)
    # From the end to the beginning: a replaced value must not move the next one.
    for name, value in sorted(values.items(), key=lambda item: -nodes[item[0]].start_mark.index):
        start, end = nodes[name].start_mark.index, nodes[name].end_mark.index
        text = text[:start] + value + text[end:]
    path.write_text(text, encoding="utf-8")


def _base_node(root: yaml.MappingNode, spec: BackendSpec) -> yaml.MappingNode:
    """Return the `base` of the variant, or that of the main part where the variant has none of its own."""
    node = root
    for name in () if spec.is_default else ("variants", spec.variant):
        node = next(value for key, value in node.value if key.value == name)
    own = [value for key, value in node.value if key.value == "base"]
    return own[0] if own else next(value for key, value in root.value if key.value == "base")
