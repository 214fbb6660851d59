"""The driver's version: read from where the spec says, and judged against the range of the matrix."""

from __future__ import annotations

import re
from dataclasses import dataclass

from train.checks.host.finding import FAILED, NOTE, PASSED, UNKNOWN, Seen
from train.checks.host.needs import Needs
from train.checks.host.root import Root

EARLIER = ("dev", "alpha", "beta", "rc")
CURE = "install a driver in the range on the host, or take a variant of the image for this one"


@dataclass(frozen=True)
class Found:
    """A driver's version and where it was read; without a version: what was said instead."""

    version: str
    where: str
    said: str = ""


def read_driver(needs: Needs, root: Root) -> Found:
    """The first version that one of the spec's files or commands tells."""
    said = []
    for source in needs.driver["read_from"]:
        is_file = source.startswith("/")
        answer = root.read(source) if is_file else root.ask(source).text
        if version := _version(needs.driver["patterns"], answer):
            return Found(version, source)
        if answer.strip():
            said.append(answer.strip())
    return Found("", ", ".join(needs.driver["read_from"]), "\n".join(said))


def _version(patterns: list[str], text: str) -> str:
    for pattern in patterns:
        if match := re.search(pattern, text, re.MULTILINE):
            return match["version"].strip().rstrip(".")
    return ""


def look_at_driver(needs: Needs, found: Found) -> Seen:
    """The judgement on a driver; `unknown` where it could not be read, or where the matrix knows no range."""
    wanted = range_words(needs)
    if needs.driver["minimum"] == "none" and needs.driver["maximum"] == "none":
        return Seen("driver", "none", NOTE, "this backend has none", needed=False)
    if not found.version:
        return Seen("driver", "version", UNKNOWN, f"{found.where} told none; needed: {wanted}")
    status, detail = judge(needs, found.version)
    where = f"from {found.where}"
    return Seen("driver", found.version, status, f"{detail} ({where})", CURE if status == FAILED else "")


def judge(needs: Needs, version: str) -> tuple[str, str]:
    """Status and reason. A name such as 25.2 in the spec's lists stands for all that begins with it."""
    driver = needs.driver
    for name in driver["refused"]:
        if begins(version, name):
            return FAILED, f"the vendor names {name} as not compatible; needed: {range_words(needs)}"
    for name in driver["listed"]:
        if begins(version, name):
            return PASSED, f"the vendor names {name} as compatible"
    low, high = driver["minimum"], driver["maximum"]
    if UNKNOWN in (low, high):
        return UNKNOWN, f"needed: {range_words(needs)}"
    if low != "none" and _key(version) < _key(low) and not begins(version, low):
        return FAILED, f"older than {low}; needed: {range_words(needs)}"
    if high != "none" and _key(version) > _key(high) and not begins(version, high):
        return FAILED, f"newer than {high}; needed: {range_words(needs)}"
    return PASSED, f"in the range {range_words(needs)}"


def range_words(needs: Needs) -> str:
    """The range in words."""
    low, high = needs.driver["minimum"], needs.driver["maximum"]
    words = f"{low} or newer" if high == "none" else f"{low} to {high}"
    refused = needs.driver["refused"]
    return words + (f", not {', '.join(refused)}" if refused else "")


def begins(version: str, name: str) -> bool:
    """Whether a version is the named one or a later part of it: 25.2.0 and 25.2.RC1 of 25.2, 25.20 not."""
    parts = _parts(name)
    return _parts(version)[: len(parts)] == parts


def _parts(version: str) -> list[str]:
    return re.findall(r"\d+|[a-z]+", version.lower())


def _key(version: str) -> list[tuple[int, int, str]]:
    """For comparing: a version ends before it goes on with numbers or letters, and after its rc."""
    ranks = []
    for part in _parts(version):
        if part.isdigit():
            ranks.append((2, int(part[:18]), ""))
        else:
            ranks.append((0, 0, part) if part in EARLIER else (3, 0, part))
    return [*ranks, (1, 0, "")]
