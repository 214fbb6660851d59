"""Checks of what is installed: versions and files equal the lock, torch is the expected build."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
import sysconfig
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from train.checks.report import CheckFailed, Skipped
from train.image import BuildInfo

NO_BUILD = "there is no build-info.json: build.py did not make this environment, no lock can be compared"
GOOD, TAKEN_OUT = "good", "taken out"


def require_image(image: BuildInfo | None) -> BuildInfo:
    if image is None:
        raise Skipped(NO_BUILD)
    return image


def locked_versions(image: BuildInfo) -> dict[str, str]:
    """Name -> version that the lock demands here; markers are evaluated for this Python and machine."""
    from packaging.markers import Marker

    wanted = {}
    for name, entry in image.packages.items():
        for option in entry if isinstance(entry, list) else [entry]:
            version, marker = (
                (option, None) if isinstance(option, str) else (option["version"], option.get("marker"))
            )
            if marker is None or Marker(marker).evaluate():
                wanted[name] = version
    return wanted


def versions_equal_lock(image: BuildInfo | None) -> str:
    """Every locked and every provided package is there in its version."""
    build = require_image(image)
    wanted = locked_versions(build) | build.provided
    if not wanted:
        raise Skipped("the build info names no packages: there was no lock when it was rendered")
    faults = []
    for name, version in sorted(wanted.items()):
        try:
            found = metadata.version(name)
        except metadata.PackageNotFoundError:
            found = "missing"
        if found != version:
            faults.append(f"{name} {found}, the lock says {version}")
    if faults:
        raise CheckFailed("; ".join(faults))
    return f"{len(wanted)} packages"


def files_equal_lock(image: BuildInfo | None) -> str:
    """Every installed file equals what the hash-checked wheel brought; what the build took out is counted.

    pip compared each wheel with the lock when it was installed, and the build kept the hash of each RECORD
    then; RECORD has the hash of each file.
    """
    build = require_image(image)
    if not build.records:
        raise Skipped("the build info has no record hashes: it was not completed after the installation")
    known = _taken_out(build)
    faults, files, absent = [], 0, 0
    # Hashing runs outside the interpreter's lock, so threads do it side by side.
    with ThreadPoolExecutor() as pool:
        for name, wanted in sorted(build.records.items()):
            record = _record(name)
            if record is None:
                faults.append(f"{name}: has no RECORD")
            elif hashlib.sha256(record.read_bytes()).hexdigest() != wanted:
                faults.append(f"{name}: its RECORD changed after the installation")
            else:
                check = partial(_state, record.parent.parent, known)
                states = list(pool.map(check, _hashed_files(record)))
                faults += [f"{name}: {state}" for state in states if state not in (GOOD, TAKEN_OUT)]
                files += len(states) - states.count(TAKEN_OUT)
                absent += states.count(TAKEN_OUT)
    if faults:
        more = f"; and {len(faults) - 5} more" if len(faults) > 5 else ""
        raise CheckFailed("; ".join(faults[:5]) + more)
    rest = f"; {absent} others were taken out by the build" if absent else ""
    return f"{files} files of {len(build.records)} packages{rest}"


def _taken_out(build: BuildInfo) -> frozenset[str]:
    """Paths below site-packages that the build removed on purpose; CheckFailed if their list was changed."""
    noted = build.content.get("trimmed")
    if not noted:
        return frozenset()
    path = build.path.with_name(noted["file"])
    text = path.read_bytes() if path.exists() else b""
    if hashlib.sha256(text).hexdigest() != noted["sha256"]:
        raise CheckFailed(f"{path}: {'changed after the build' if text else 'is missing'}")
    return frozenset(name for rule in json.loads(text)["rules"] for name in rule["files"])


def _record(name: str) -> Path | None:
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return None
    folder = getattr(distribution, "_path", None)  # there is no public way from a distribution to its folder
    path = Path(folder) / "RECORD" if folder else None
    return path if path and path.exists() else None


def _state(site: Path, taken_out: frozenset[str], listed: tuple[str, str, str]) -> str:
    name, method, wanted = listed
    path = site / name
    if not path.exists():
        return TAKEN_OUT if name in taken_out else f"{name} is missing"
    return GOOD if _digest(path, method) == wanted else f"{name} changed after the installation"


def _hashed_files(record: Path) -> Iterator[tuple[str, str, str]]:
    with record.open(newline="", encoding="utf-8") as file:
        for name, signature, *_ in csv.reader(file):
            if signature and not name.endswith(".pyc"):
                method, _, digest = signature.partition("=")
                yield name, method, digest


def _digest(path: Path, method: str) -> str:
    digest = hashlib.new(method)
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()


def no_refused_packages(image: BuildInfo | None) -> str:
    """None of the packages that another torch brings along is installed: the trace of a torch replaced
    by pip.
    """
    build = require_image(image)
    if not build.refused_packages:
        raise Skipped("this backend's spec refuses no packages")
    # Of the environment alone: what the base image itself has beside its torch is the vendor's business.
    found_here = metadata.distributions(path=[sysconfig.get_path("purelib")])
    installed = {re.sub(r"[-_.]+", "-", item.metadata["Name"] or "").lower() for item in found_here}
    found = sorted(
        name for name in installed if any(fnmatch(name, pattern) for pattern in build.refused_packages)
    )
    if found:
        raise CheckFailed(f"installed, but refused here: {', '.join(found[:5])} ({len(found)} in all)")
    return f"none of {', '.join(build.refused_packages)}"


def torch_is_expected(image: BuildInfo | None) -> str:
    """torch imports, and is the version and the kind of build that the spec names."""
    build = require_image(image)
    import torch

    found: dict[str, Any] = {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
    }
    wanted = expected_torch(build)
    # The registry's wheel of 2.10.0 calls itself 2.10.0+cu128, or +cpu: the label is asked for only where the
    # lock has one, and the kind of build is what cuda and hip tell.
    told = dict(found)
    if "+" not in wanted["version"]:
        told["version"] = found["version"].partition("+")[0]
    faults = [
        f"{name} is {found[name]}, {value} is expected"
        for name, value in wanted.items()
        if value != "unknown" and told[name] != value
    ]
    if faults:
        raise CheckFailed(f"torch: {'; '.join(faults)}")
    return ", ".join(f"{name} {value}" for name, value in found.items())


def expected_torch(build: BuildInfo) -> dict[str, Any]:
    """version, cuda, hip of the torch that the spec names for this machine."""
    import platform

    version = build.torch.get("by_architecture", {}).get(platform.machine(), build.torch["version"])
    return {"version": version, "cuda": build.torch.get("cuda"), "hip": build.torch.get("hip")}
