"""Sizes such as 16g and durations such as 12h, and how Docker and Kubernetes write them."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

SIZE = re.compile(r"^([1-9]\d*)(?:([kmgt])|([KMGT])i)$")
DURATION = re.compile(r"^([1-9]\d*)([smhd]?)$")
UNITS = {letter: 1024**power for power, letter in enumerate("kmgt", 1)}
SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def _size(value: str) -> str:
    found = SIZE.match(value)
    if not found:
        raise ValueError("is no size: a whole number and k, m, g or t, such as 16g")
    return found[1] + (found[2] or found[3].lower())


def _duration(value: str) -> str:
    if not DURATION.match(value):
        raise ValueError("is no duration: a whole number and s, m, h or d, such as 12h")
    return value


Size = Annotated[str, AfterValidator(_size)]
Duration = Annotated[str, AfterValidator(_duration)]


def size_bytes(size: str) -> int:
    """Return bytes of a size such as 16g, in units of 1024."""
    return int(size[:-1]) * UNITS[size[-1]]


def quantity(size: str) -> str:
    """Return a size as Kubernetes writes it: 16g -> 16Gi."""
    return f"{size[:-1]}{size[-1].upper()}i"


def sum_of_sizes(*sizes: str) -> str:
    """Return the sum as a size, in the largest unit that holds it exactly."""
    total = sum(map(size_bytes, sizes))
    letter = next(letter for letter in "tgmk" if total % UNITS[letter] == 0)
    return f"{total // UNITS[letter]}{letter}"


def duration_seconds(duration: str) -> int:
    """Return seconds of a duration such as 12h."""
    found = DURATION.match(duration)
    assert found
    return int(found[1]) * SECONDS[found[2]]
