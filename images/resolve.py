"""Resolve requirements to hashed pins with uv, the same on every machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from images.errors import EXIT_CHECK_FAILED, EXIT_UNAVAILABLE, UserError
from images.pins import Pin, parse_requirements


@dataclass(frozen=True)
class StandIn:
    """A package that no index in reach has: uv is shown an empty wheel with its requirements."""

    name: str
    version: str
    requires: list[str]


@dataclass(frozen=True)
class Request:
    """What to resolve. `environments` are PEP 508 markers; none means every platform and Python.

    `overrides` take the place of whatever any package asks for of the same name.
    """

    requirements: list[str]
    minimum_python: str
    environments: list[str] = field(default_factory=list)
    constraints: list[str] = field(default_factory=list)
    stand_ins: list[StandIn] = field(default_factory=list)
    overrides: list[str] = field(default_factory=list)
    upgrade: list[str] = field(default_factory=list)
    index_url: str | None = None


def find_uv() -> str:
    """Return the path of uv: the one beside this Python first, then any."""
    beside = Path(sys.executable).with_name("uv")
    found = str(beside) if beside.exists() else shutil.which("uv")
    if not found:
        hint = "python -m pip install -r images/stack/dev.txt"
        raise UserError("lock: uv is not installed", hint, EXIT_UNAVAILABLE)
    return found


def uv_version(uv: str) -> str:
    """Return `uv <version>`, which the lock records."""
    output = subprocess.run([uv, "--version"], capture_output=True, text=True, check=True).stdout
    return " ".join(output.split()[:2])


def resolve(request: Request, previous: str | None, uv: str) -> list[Pin]:
    """Return pins with hashes. Versions in `previous` (an old result) are kept where they still fit."""
    with tempfile.TemporaryDirectory(prefix="isotune-lock-") as name:
        folder = Path(name)
        _write_inputs(folder, request)
        if previous:
            (folder / "pins.txt").write_text(previous, encoding="utf-8")
        done = subprocess.run(_command(uv, request), cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            raise UserError(
                f"lock: uv found no solution: {_last_words(done.stderr)}",
                _hint(done.stderr),
                EXIT_CHECK_FAILED,
            )
        pins = parse_requirements((folder / "pins.txt").read_text(encoding="utf-8"))
    return _without_common_marker(pins, request.environments)


def _write_inputs(folder: Path, request: Request) -> None:
    (folder / "requirements.in").write_text("\n".join(request.requirements) + "\n", encoding="utf-8")
    (folder / "constraints.in").write_text("\n".join(request.constraints) + "\n", encoding="utf-8")
    (folder / "overrides.in").write_text("\n".join(request.overrides) + "\n", encoding="utf-8")
    # `environments` is honoured in a pyproject.toml only; the quotes of a marker are TOML's literal quotes.
    lines = ["[project]", 'name = "lock"', 'version = "0"', "[tool.uv]", "environments = ["]
    lines += [f'  "{marker}",' for marker in request.environments]
    (folder / "pyproject.toml").write_text("\n".join([*lines, "]"]) + "\n", encoding="utf-8")
    (folder / "wheels").mkdir()
    for item in request.stand_ins:
        _write_stand_in(folder / "wheels", item)


def _write_stand_in(folder: Path, item: StandIn) -> None:
    metadata = [f"Metadata-Version: 2.1\nName: {item.name}\nVersion: {item.version}"]
    metadata += [f"Requires-Dist: {line}" for line in item.requires]
    info = f"{item.name.replace('-', '_')}-{item.version}.dist-info"
    with zipfile.ZipFile(folder / f"{info.removesuffix('.dist-info')}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{info}/METADATA", "\n".join(metadata) + "\n\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def _command(uv: str, request: Request) -> list[str]:
    command = [
        uv,
        "pip",
        "compile",
        "requirements.in",
        "--constraints",
        "constraints.in",
        "--output-file",
        "pins.txt",
    ]
    # `fewest`: one version for all Pythons where there is one, so that results compare.
    command += ["--universal", "--fork-strategy", "fewest", "--python-version", request.minimum_python]
    command += [
        "--generate-hashes",
        "--only-binary",
        ":all:",
        "--no-annotate",
        "--no-header",
        "--no-python-downloads",
    ]
    command += ["--find-links", "wheels", "--quiet"]
    command += ["--overrides", "overrides.in"] if request.overrides else []
    command += ["--default-index", request.index_url] if request.index_url else []
    return command + [part for name in request.upgrade for part in ("--upgrade-package", name)]


def _without_common_marker(pins: list[Pin], environments: list[str]) -> list[Pin]:
    """Drop the part of each marker that only repeats the environments.

    It is not only noise: with it pip installs nothing on another platform, and calls that success.
    """
    if not environments:
        return pins
    whole = max((pin.marker for pin in pins), key=lambda marker: sum(pin.marker == marker for pin in pins))
    limit, _, platforms = whole.partition(" and (")
    tail = f" and ({platforms}" if platforms else f" and {whole}"
    result = []
    for pin in pins:
        marker = "" if pin.marker == whole else pin.marker.replace(tail, "").replace(f" and {limit}", "")
        result.append(Pin(pin.name, pin.version, marker.removeprefix(f"{limit} and "), pin.hashes))
    return result


def _last_words(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("warning:")]
    return " ".join(lines[-6:])


def _hint(text: str) -> str:
    if any(word in text for word in ("certificate", "invalid peer", "UnknownIssuer")):
        return "set SSL_CERT_FILE to the file with your proxy's CA"
    if any(word in text for word in ("dns error", "error sending request", "Connect")):
        return "no index was reached: give your mirror with --index-url"
    return "loosen a pin in images/stack/ or change torch's version in the spec"
