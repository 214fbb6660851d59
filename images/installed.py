"""What is installed in an image, read from the databases of pip and dpkg. Standard library only."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from urllib.parse import quote

from images.licences import Licence, of_debian, of_python
from images.pins import Pin, normalise

STATUS = "var/lib/dpkg/status"
RPM = ("var/lib/rpm", "usr/lib/sysimage/rpm")


@dataclass(frozen=True)
class Package:
    """One installed package. properties: further facts, name to value."""

    name: str
    version: str
    purl: str
    licences: list[Licence]
    sha256: str = ""
    properties: list[tuple[str, str]] = field(default_factory=list)


def python_packages(pins: list[Pin], folders: list[str] | None = None) -> list[Package]:
    """Return the Python packages that this interpreter sees (or those in `folders`), by name.

    One wheel in the lock: its hash is the package's. Several, for other machines: which one was taken is not
    written down anywhere, so all that pip would have taken are told as properties.
    """
    found: dict[str, Package] = {}
    for distribution in metadata.distributions(path=folders if folders is not None else sys.path):
        name = normalise(distribution.metadata["Name"] or "")
        if name and name not in found:
            found[name] = _python_package(name, distribution, pins)
    return [found[name] for name in sorted(found)]


def _python_package(name: str, distribution: metadata.Distribution, pins: list[Pin]) -> Package:
    version = distribution.version
    hashes = sorted(
        value for pin in pins if (normalise(pin.name), pin.version) == (name, version) for value in pin.hashes
    )
    properties = [("isotune:locked-sha256", value) for value in hashes if len(hashes) > 1]
    if not hashes:
        properties.append(("isotune:origin", "not in the lock: the base image brings it"))
    record = distribution.read_text("RECORD")
    if record is not None:
        properties.append(("isotune:record-sha256", hashlib.sha256(record.encode()).hexdigest()))
    purl = f"pkg:pypi/{name}@{quote(version, safe='')}"
    licences = of_python(distribution.metadata)  # type: ignore[arg-type]
    return Package(name, version, purl, licences, hashes[0] if len(hashes) == 1 else "", properties)


def system_packages(root: Path) -> tuple[list[Package], str]:
    """Return the packages of the distribution by name, and what is to be said where they are unknown."""
    status = root / STATUS
    if not status.exists():
        has_rpm = any((root / name).exists() for name in RPM)
        what = "an rpm database, which is not read" if has_rpm else "no database of dpkg"
        return [], f"unknown: the base image has {what}"
    system = os_release(root)
    found = [
        _system_package(paragraph, system, root)
        for paragraph in _paragraphs(status.read_text(encoding="utf-8", errors="replace"))
        if paragraph.get("Status", "").split()[-1:] == ["installed"]
    ]
    return sorted(found, key=lambda package: package.purl), ""


def os_release(root: Path) -> dict[str, str]:
    """Return the fields of os-release; empty where there is none."""
    paths = [root / name for name in ("etc/os-release", "usr/lib/os-release")]
    path = next((path for path in paths if path.exists()), None)
    text = path.read_text(encoding="utf-8", errors="replace") if path else ""
    return {name: value.strip("\"'") for name, value in re.findall(r"^(\w+)=(.*?)\s*$", text, re.MULTILINE)}


def _paragraphs(text: str) -> Iterator[dict[str, str]]:
    """Yield the first line of each field, paragraph by paragraph."""
    for paragraph in re.split(r"\n\s*\n", text):
        fields = dict(re.findall(r"^([\w-]+):[ \t]*(.*)$", paragraph, re.MULTILINE))
        if fields:
            yield fields


def _system_package(fields: dict[str, str], system: dict[str, str], root: Path) -> Package:
    name, version, architecture = fields["Package"], fields["Version"], fields["Architecture"]
    distribution = system.get("ID", "unknown")
    release = f"&distro={distribution}-{system['VERSION_ID']}" if "VERSION_ID" in system else ""
    purl = f"pkg:deb/{distribution}/{name}@{quote(version, safe=':')}?arch={architecture}{release}"
    copyright_file = root / "usr/share/doc" / name / "copyright"
    text = copyright_file.read_text(encoding="utf-8", errors="replace") if copyright_file.is_file() else ""
    properties = [("isotune:source-package", fields["Source"])] if "Source" in fields else []
    return Package(name, version, purl, of_debian(text), properties=properties)
