"""Sizes of a lock's wheels as an index tells them: uv writes them beside the hashes of a pylock file."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from images.errors import EXIT_UNAVAILABLE, UserError
from images.lockfile import Lock, Pin
from images.machine import Machine, fits
from images.resolve import find_uv
from images.spec import BackendSpec
from images.wheelhouse import wanted

# `{ url = ".../name.whl", size = 1, hashes = { sha256 = "..." } }`, by pattern: tomllib begins with 3.11.
WHEEL = re.compile(r'/(?P<file>[^/"]+\.whl)".*\bsize = (?P<size>\d+),.*sha256 = "(?P<sha256>[0-9a-f]{64})"')


def download_sizes(spec: BackendSpec, lock: Lock, machine: Machine) -> tuple[dict[str, int], list[str]]:
    """Return name -> bytes of the wheel that a machine downloads, and the pins whose size no index tells.

    Raises UserError if uv is not there or reaches no index.
    """
    pins = wanted(spec, lock, machine)
    # A local label such as +cpu is on the spec's own index only.
    text = _pylock([pin for pin in pins if "+" not in pin.version], machine.python)
    listed = {match["sha256"]: (match["file"], int(match["size"])) for match in WHEEL.finditer(text)}
    known, unknown = {}, []
    for pin in pins:
        fitting = [
            listed[value][1] for value in pin.hashes if value in listed and fits(listed[value][0], machine)
        ]
        if fitting:
            known[pin.name] = max(fitting)
        else:
            unknown.append(f"{pin.name} {pin.version}")
    return known, unknown


def _pylock(pins: list[Pin], python: str) -> str:
    with tempfile.TemporaryDirectory(prefix="isotune-sizes-") as name:
        folder = Path(name)
        lines = "".join(f"{pin.name}=={pin.version}\n" for pin in pins)
        (folder / "pins.txt").write_text(lines, encoding="utf-8")
        # Its own configuration: else uv looks for one in the folders above, which are anybody's.
        (folder / "uv.toml").touch()
        command = [find_uv(), "pip", "compile", "pins.txt", "--no-deps", "--universal", "--quiet"]
        command += [f"--python-version={python}", "--format=pylock.toml", "--output-file=pylock.toml"]
        done = subprocess.run(
            [*command, "--no-python-downloads"], cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            words = done.stderr.strip().splitlines() or ["uv failed"]
            hint = "give uv an index in reach: UV_DEFAULT_INDEX, SSL_CERT_FILE"
            raise UserError(f"sizes: {words[-1]}", hint, EXIT_UNAVAILABLE)
        return (folder / "pylock.toml").read_text(encoding="utf-8")
