"""Variants of a backend: the main part of a spec with the few keys that differ laid over it, as YAML nodes.

Nodes keep their lines: a fault in a variant is told with the place where it was written.
"""

from __future__ import annotations

import re

import yaml

from images.faults import Fault

MAIN, OTHERS, DEFAULT = "variant", "variants", "default_variant"
# As in images.spec.VariantName; asked for here because the names are keys, not values, of the file.
NAME = re.compile(r"[a-z0-9][a-z0-9.-]*")
TEXT = "tag:yaml.org,2002:str"


def variant_nodes(file: str, node: yaml.MappingNode) -> tuple[list[yaml.MappingNode], list[Fault]]:
    """Return one whole spec per variant, the main part first, and what is wrong with `variants`."""
    others = _value(node, OTHERS)
    main = _without(node, OTHERS)
    name = _value(node, MAIN)
    given = _value(node, DEFAULT)
    if given is not None:
        what = "is not a key of a file"
        return [main], [Fault(file, _line(given), DEFAULT, what, f"name the main part with `{MAIN}:`")]
    if others is None:
        return [_with_default(main, name)], []
    if not isinstance(others, yaml.MappingNode):
        hint = "write `name: {keys that differ}`"
        return [main], [Fault(file, _line(others), OTHERS, "is not a mapping of names to keys", hint)]
    main = _with_default(main, name)
    faults = []
    if name is None:
        what = "is missing where there are other variants"
        faults.append(Fault(file, _line(node), MAIN, what, f"name the main part: `{MAIN}: ...`"))
    result = [main]
    for key, own in others.value:
        found = _name_faults(file, key, own, name)
        faults += found
        if not found:
            result.append(overlay(main, _renamed(own, key)))
    return result, faults


def overlay(main: yaml.MappingNode, own: yaml.MappingNode) -> yaml.MappingNode:
    """Return `main` with the keys of `own` laid over it.

    Mappings are joined key by key; all else is replaced: lists, single values, and a mapping by an empty one.
    """
    table = {key.value: (key, value) for key, value in main.value}
    for key, value in own.value:
        old = table.get(key.value, (None, None))[1]
        joined = isinstance(value, yaml.MappingNode) and value.value and isinstance(old, yaml.MappingNode)
        table[key.value] = (key, overlay(old, value) if joined else value)
    return yaml.MappingNode(main.tag, list(table.values()), main.start_mark, main.end_mark)


def _name_faults(file: str, key: yaml.Node, own: yaml.Node, main: yaml.Node | None) -> list[Fault]:
    where = f"{OTHERS}.{key.value}"
    if not NAME.fullmatch(str(key.value)):
        return [Fault(file, _line(key), where, "is no name", "lower-case letters, digits, dots and dashes")]
    if main is not None and key.value == main.value:
        hint = "its keys belong into the main part"
        return [Fault(file, _line(key), where, "is the name of the main part", hint)]
    if not isinstance(own, yaml.MappingNode):
        return [
            Fault(file, _line(key), where, "is not a mapping of keys", "write the keys that differ below it")
        ]
    fixed = [(item, item.value) for item, _ in own.value if item.value in ("name", "aliases", MAIN, DEFAULT)]
    hint = "it belongs to the backend: give it in the main part"
    return [Fault(file, _line(item), f"{where}.{name}", "cannot differ", hint) for item, name in fixed]


def _renamed(own: yaml.MappingNode, key: yaml.Node) -> yaml.MappingNode:
    """Return a variant's keys with its name among them, as text whatever YAML takes it for."""
    label = yaml.ScalarNode(TEXT, MAIN, key.start_mark, key.end_mark)
    name = yaml.ScalarNode(TEXT, str(key.value), key.start_mark, key.end_mark)
    return yaml.MappingNode(own.tag, [*own.value, (label, name)], own.start_mark, own.end_mark)


def _with_default(main: yaml.MappingNode, name: yaml.Node | None) -> yaml.MappingNode:
    if name is None:
        return main
    label = yaml.ScalarNode(TEXT, DEFAULT, name.start_mark, name.end_mark)
    return yaml.MappingNode(main.tag, [*main.value, (label, name)], main.start_mark, main.end_mark)


def _without(node: yaml.MappingNode, key: str) -> yaml.MappingNode:
    kept = [pair for pair in node.value if pair[0].value != key]
    return yaml.MappingNode(node.tag, kept, node.start_mark, node.end_mark)


def _value(node: yaml.MappingNode, key: str) -> yaml.Node | None:
    return next((value for name, value in node.value if name.value == key), None)


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
