"""Where model, data and output are: a path of the host or a claim of Kubernetes, and its mount."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

CLAIM = re.compile(r"^pvc:(?P<name>[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?)(?:/(?P<path>.+))?$")


@dataclass(frozen=True)
class Place:
    """What holds model, data, eval_data or output: `path` below a claim of Kubernetes, or of the host."""

    role: str
    claim: str | None
    path: str
    target: str
    read_only: bool


def place(role: str, value: str) -> Place | str:
    """Return the place that an option names, or what is wrong with it, with the cure."""
    found = CLAIM.match(value)
    if value.startswith("pvc:") and not found:
        return f"{value!r} is no pvc:NAME[/sub/path]: names are lower-case letters, digits, dashes and dots"
    path = (found["path"] or "") if found else value
    if not found and not path.strip():
        return "is empty: give a path, or pvc:NAME[/sub/path]"
    parts = PurePosixPath(path).parts
    if found and (path.startswith("/") or ".." in parts):
        return f"{value!r}: the path below a claim goes neither up nor to the root"
    if not found and not path.startswith(("/", "./", "../", "~")):
        path = f"./{path}"  # compose reads a bare word as the name of a volume
    return Place(role, found["name"] if found else None, path, _target(role, path), role != "output")


def _target(role: str, path: str) -> str:
    """Return where it is mounted: a file keeps its name, for the name's end tells what it holds."""
    folder = {"model": "/model", "data": "/data", "eval_data": "/eval-data", "output": "/out"}[role]
    name = PurePosixPath(path).name
    return f"{folder}/{name}" if role in ("data", "eval_data") and PurePosixPath(path).suffix else folder
