"""Evaluate environment markers (PEP 508) for another machine: only its architecture and Python are known."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from typing import Any

# The patch is not known; the newest of all is what a base image is likely to have.
NEWEST_PATCH = 99
ORDER: dict[type, Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
VERSIONS = ("python_version", "python_full_version", "implementation_version")


def environment(python: str, architecture: str) -> dict[str, str]:
    """Return the markers' variables for CPython `python` (such as 3.11) on Linux."""
    return {
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": architecture,
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
        "python_version": python,
        "python_full_version": f"{python}.{NEWEST_PATCH}",
        "implementation_version": f"{python}.{NEWEST_PATCH}",
        "extra": "",
    }


def holds(marker: str, variables: dict[str, str]) -> bool:
    """Tell whether a marker holds; an empty one always does. Raises ValueError for one that is not read."""
    if not marker.strip():
        return True
    try:
        # A marker's grammar is a part of Python's: names, texts, comparisons, `and`, `or`, brackets.
        tree = ast.parse(marker.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{marker!r} is not a marker") from error
    return _truth(tree, variables, marker)


def _truth(node: ast.expr, variables: dict[str, str], marker: str) -> bool:
    if isinstance(node, ast.BoolOp):
        parts = [_truth(part, variables, marker) for part in node.values]
        return all(parts) if isinstance(node.op, ast.And) else any(parts)
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        raise ValueError(f"{marker!r} is not a marker")
    left, right = (_text(part, variables, marker) for part in (node.left, node.comparators[0]))
    kind = type(node.ops[0])
    if kind in (ast.In, ast.NotIn):
        return (left in right) is (kind is ast.In)
    if kind not in ORDER:
        raise ValueError(f"{marker!r}: this comparison is not known")
    names = {part.id for part in (node.left, node.comparators[0]) if isinstance(part, ast.Name)}
    if not names & set(VERSIONS):
        return ORDER[kind](left, right)
    if right.endswith(".*"):
        return left.startswith(right[:-1]) is (kind is ast.Eq)
    return ORDER[kind](_numbers(left), _numbers(right))


def _text(node: ast.expr, variables: dict[str, str], marker: str) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.Name) and node.id in variables:
        return variables[node.id]
    raise ValueError(f"{marker!r}: {ast.unparse(node)} is not known")


def _numbers(version: str) -> tuple[int, ...]:
    """Return a version's numbers without closing zeros: 3.11 and 3.11.0 are one version."""
    found = [int(number) for number in re.findall(r"\d+", version)]
    while found and found[-1] == 0:
        found.pop()
    return tuple(found)
