"""House rules on locks, read as text: a line that a reader of locks would skip is told too."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import product
from typing import Any

import yaml

from images import markers
from images.faults import Fault, line_of
from images.pins import normalise
from images.spec_types import UNRESOLVED

PIN = re.compile(
    r"^(?P<name>[\w.-]+)==(?P<version>[^\s;]+)(?:\s*;\s*(?P<marker>.*?))?(?P<hashes>(?:\s+--hash=\S+)*)$"
)
HASH = re.compile(r"^sha256:[0-9a-f]{64}$")
# What a lock without a list of its own is for: the tools run on any Python from 3.10 on.
PYTHONS, ARCHITECTURES = ("3.10", "3.11", "3.12", "3.13", "3.14"), ("x86_64", "aarch64")

Line = tuple[int, str]
Pinned = tuple[int, str, str, str, list[str]]


def check_requirements(file: str, text: str, lock: dict[str, Any] | None = None) -> list[Fault]:
    """Return every finding of a requirements file; `lock` is what its lock.yaml says."""
    faults, pins = [], []
    for number, line in joined_lines(text):
        if "://" in line or re.match(r"^-|.*\s@\s", line):
            cure = "take it out: indexes are told by options of build.py, or stand in the spec"
            faults.append(Fault(file, number, "lock-address", f"{line[:60]!r} is an address or option", cure))
        elif line.startswith("#"):
            continue
        elif (match := PIN.match(line)) and _readable(match["marker"] or ""):
            hashes = re.findall(r"--hash=(\S+)", match["hashes"])
            pins.append((number, normalise(match["name"]), match["version"], match["marker"] or "", hashes))
        else:
            cure = "pin it as name==version, perhaps with a marker: build.py lock does"
            faults.append(Fault(file, number, "lock-pin", f"{line[:60]!r} is not exact", cure))
    faults += [*_hashes(file, pins), *_one_version(file, pins, lock or {})]
    return sorted(faults, key=lambda fault: fault.line)


def check_lock(file: str, text: str, requirements: str) -> Iterator[Fault]:
    """Yield every finding of a lock.yaml: a wheel twice, without a source, or with another hash."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    assert node
    seen: dict[tuple[str, ...], int] = {}
    for index, wheel in enumerate(yaml.safe_load(text).get("wheels") or []):
        line = line_of(node, ("wheels", index))
        key = tuple(str(wheel.get(part)) for part in ("distribution", "version", "python", "architecture"))
        name = " ".join(key)
        if key in seen:
            what = f"{name} stands here and in line {seen[key]}"
            yield Fault(file, line, "one-source", what, "keep the wheel that was really seen")
        seen.setdefault(key, line)
        if not wheel.get("source") or not wheel.get("confidence"):
            yield Fault(file, line, "one-source", f"{name} has no source", "say where its hash was read")
        digest = str(wheel.get("sha256"))
        if digest != UNRESOLVED and f"sha256:{digest}" not in requirements:
            what = f"{name}: {digest[:12]}... is not in requirements.txt"
            yield Fault(file, line, "lock-hash", what, "build.py lock writes the two together")


def check_stack(file: str, text: str) -> Iterator[Fault]:
    """Yield what a list that is installed as it stands leaves open."""
    for number, line in enumerate(text.splitlines(), 1):
        wanted = line.partition("#")[0].partition(";")[0].strip()
        if wanted and not re.match(r"^[\w.\[\]-]+==\d\S*$", wanted):
            yield Fault(file, number, "floating", f"{wanted!r} is not exact", "write name==version")


def joined_lines(text: str) -> Iterator[Line]:
    """Yield (number of the first line, text) of each line with those that continue it."""
    lines = text.splitlines()
    index = 0
    while index < len(lines):
        start, parts = index, []
        while index < len(lines):
            line = lines[index]
            index += 1
            parts.append(line.rstrip().removesuffix("\\").strip())
            if not line.rstrip().endswith("\\"):
                break
        if any(parts):
            yield start + 1, " ".join(filter(None, parts))


def _readable(marker: str) -> bool:
    try:
        markers.holds(marker, markers.environment(PYTHONS[0], ARCHITECTURES[0]))
    except ValueError:
        return False
    return True


def _hashes(file: str, pins: list[Pinned]) -> Iterator[Fault]:
    cure = "build.py lock writes one sha256 for each wheel"
    for number, name, version, _, hashes in pins:
        if not hashes:
            yield Fault(file, number, "lock-hash", f"{name}=={version} has no hash", cure)
        for value in hashes:
            if not HASH.match(value):
                yield Fault(
                    file, number, "lock-hash", f"{name}=={version}: {value[:40]!r} is no sha256", cure
                )


def _one_version(file: str, pins: list[Pinned], lock: dict[str, Any]) -> Iterator[Fault]:
    """Yield packages of which one environment gets two: pip would refuse them or take the last."""
    told = set()
    for python, architecture in product(
        lock.get("python") or PYTHONS, lock.get("architectures") or ARCHITECTURES
    ):
        variables = markers.environment(python, architecture)
        first: dict[str, Pinned] = {}
        for pin in pins:
            number, name, version, marker, _ = pin
            if not markers.holds(marker, variables):
                continue
            other = first.setdefault(name, pin)
            if other is not pin and number not in told:
                told.add(number)
                what = f"{name} {version} and, in line {other[0]}, {other[2]} for {python} on {architecture}"
                yield Fault(file, number, "one-version", what, "let build.py lock find one that fits all")
