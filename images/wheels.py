"""Wheels seen in a folder or on an index, and their hashes against the known ones of a spec."""

from __future__ import annotations

import hashlib
import re
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path

from images.errors import EXIT_DATA, UserError
from images.pins import normalise
from images.spec import WheelHash
from images.spec_types import UNRESOLVED

# name-version(-build)-python-abi-platform.whl
WHEEL = re.compile(
    r"^(?P<name>[^-]+)-(?P<version>[^-]+)(-\d[^-]*)?-(?P<python>cp3\d+)-(?P<abi>\w+)-(?P<platform>[^-]+)\.whl$"
)
ARCHITECTURE = re.compile(r"linux\w*_(x86_64|aarch64)$")
INDEX_SECONDS = 20


@dataclass(frozen=True)
class SeenWheel:
    """A wheel that was really there: in a folder, or listed by an index with its hash."""

    file: str
    version: str
    python: str
    architecture: str
    sha256: str
    source: str


def in_folder(folder: Path, distribution: str) -> list[SeenWheel]:
    """Return the Linux wheels of a distribution in a folder, hashed."""
    found = []
    for path in sorted(folder.glob("*.whl")):
        parts = _parts(path.name, distribution)
        if parts:
            found.append(SeenWheel(path.name, *parts, sha256_file(path), "measured on the wheel"))
    return found


def on_index(index: str, distribution: str) -> list[SeenWheel] | None:
    """Return the Linux wheels that an index lists with a sha256, or None if it cannot be reached."""
    url = f"{index.rstrip('/')}/{normalise(distribution)}/"
    try:
        with urllib.request.urlopen(url, timeout=INDEX_SECONDS) as answer:
            page = answer.read().decode("utf-8", "replace")
    except (urllib.error.URLError, OSError):
        return None
    return listed_on(page, distribution, f"listed by {index}")


def listed_on(page: str, distribution: str, source: str) -> list[SeenWheel]:
    """Return the Linux wheels that an index page links with a sha256."""
    found = []
    for href in re.findall(r'href="([^"]+\.whl#sha256=[0-9a-f]{64})"', page):
        address, _, digest = href.partition("#sha256=")
        file = urllib.parse.unquote(address.rsplit("/", 1)[-1])
        parts = _parts(file, distribution)
        if parts:
            found.append(SeenWheel(file, *parts, digest, source))
    return found


def requirements_of(wheel: Path) -> list[str]:
    """Return a wheel's own requirements, without those of its extras."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(item for item in archive.namelist() if item.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(name).decode())
    return [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]


def merge(known: Iterable[WheelHash], seen: Iterable[SeenWheel], version: str) -> list[WheelHash]:
    """Return the known hashes, the unresolved ones filled in by what was seen.

    Raises UserError with every seen wheel whose hash contradicts a known one: one of the two is forged or
    rebuilt, and only a person can tell which.
    """
    table: dict[tuple[str, str], WheelHash] = {(item.python, item.architecture): item for item in known}
    faults = []
    for wheel in seen:
        key = (wheel.python, wheel.architecture)
        old = table.get(key)
        if wheel.version != version:
            continue
        if old is None or old.sha256 == UNRESOLVED:
            table[key] = _entry(wheel)
        elif old.sha256 != wheel.sha256:
            found = f"{wheel.file}: {wheel.source}: sha256 {wheel.sha256}"
            faults.append(f"{found}, but {old.sha256} is known ({old.source})")
    if faults:
        hint = "find out which is right and mend the wheel or `hashes` in the spec; nothing was written"
        raise UserError("\n".join(faults), hint, EXIT_DATA)
    return list(table.values())


def fill(known: Iterable[WheelHash], earlier: Iterable[SeenWheel], version: str) -> list[WheelHash]:
    """Return the known hashes, the unresolved ones taken from an earlier lock."""
    table = {(item.python, item.architecture): item for item in earlier if item.version == version}
    result = []
    for item in known:
        found = table.get((item.python, item.architecture))
        result.append(_entry(found) if found and item.sha256 == UNRESOLVED else item)
    return result


def sha256_file(path: Path) -> str:
    """Return the hex sha256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _entry(wheel: SeenWheel) -> WheelHash:
    return WheelHash.model_validate(
        {
            "python": wheel.python,
            "architecture": wheel.architecture,
            "sha256": wheel.sha256,
            "source": wheel.source,
            "confidence": "P",
        }
    )


def _parts(file: str, distribution: str) -> tuple[str, str, str] | None:
    """Return (version, Python tag, architecture) if the file is a Linux CPython wheel of the distribution."""
    match = WHEEL.match(file)
    machine = ARCHITECTURE.search(match["platform"]) if match else None
    if not match or not machine or normalise(match["name"]) != normalise(distribution):
        return None
    # cp313-cp313t is the build for Python without its lock: another file, another hash.
    if match["abi"] not in (match["python"], "abi3"):
        return None
    return match["version"], match["python"], machine[1]
