"""Lines of a lock: a distribution at one version, with the hashes of its wheels. Standard library only."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Pin:
    """One line of a lock: a distribution at one version, perhaps for some Pythons only."""

    name: str
    version: str
    marker: str = ""
    hashes: tuple[str, ...] = ()

    @property
    def requirement(self) -> str:
        return f"{self.name}=={self.version}" + (f" ; {self.marker}" if self.marker else "")

    def __str__(self) -> str:
        return " \\\n    ".join([self.requirement, *(f"--hash=sha256:{value}" for value in self.hashes)])


def parse_requirements(text: str) -> list[Pin]:
    """Parse a hashed requirements file as uv or `lock` writes it."""
    pins = []
    joined = re.sub(r"\\\n\s*", "", "\n".join(line for line in text.splitlines() if not line.startswith("#")))
    for line in filter(None, map(str.strip, joined.splitlines())):
        requirement, *hashes = re.split(r"\s*--hash=sha256:", line)
        pinned, _, marker = requirement.partition(";")
        name, _, version = pinned.strip().partition("==")
        pins.append(Pin(name, version.strip(), marker.strip(), tuple(value.strip() for value in hashes)))
    return pins


def normalise(name: str) -> str:
    """Return a distribution's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
