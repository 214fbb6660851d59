"""Let pip download wheels of a lock for any machine, and say in few words what went wrong."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from images.errors import EXIT_UNAVAILABLE, UserError
from images.machine import Machine, platform_tags
from images.pins import Pin
from images.sources import Sources
from images.spec import BackendSpec

# Few enough that little is lost by an interruption, many enough that starting pip does not count.
BATCH = 8
NOT_REACHED = "an index was not reached"
OUT_OF_REACH = re.compile(
    r"NewConnectionError|name resolution|Name or service not known|timed out|SSLError|Proxy"
)


def batches(pins: list[Pin]) -> Iterator[list[Pin]]:
    """Yield the pins in groups; those that only the spec's own index has come last, by themselves."""
    usual = [pin for pin in pins if "+" not in pin.version]
    own = [pin for pin in pins if "+" in pin.version]
    for group in (usual, own):
        yield from (group[start : start + BATCH] for start in range(0, len(group), BATCH))


class Fetcher:
    """Downloads into one folder, as the options say; after an index was out of reach it tries no more."""

    def __init__(self, spec: BackendSpec, sources: Sources, machine: Machine, folder: Path) -> None:
        self.machine, self.folder = machine, folder
        self.reached = True
        own = spec.torch.index
        # Only what has a local version is sought on the spec's own index: every package has one source.
        usual = spec.model_copy(update={"torch": spec.torch.model_copy(update={"index": None})})
        self.usual = _environment(usual, sources, folder / "usual")
        self.own = _environment(spec, sources, folder / "own") if own else self.usual

    def fetch(self, batch: list[Pin]) -> dict[str, str]:
        """Download a group; returns name and version -> what went wrong, for each that is not there."""
        if not self.reached:
            return {f"{pin.name} {pin.version}": "not tried" for pin in batch}
        what = self._download(batch)
        if not what:
            return {}
        if what.startswith(NOT_REACHED):
            self.reached = False
        elif len(batch) > 1:
            return {name: told for pin in batch for name, told in self.fetch([pin]).items()}
        return {f"{pin.name} {pin.version}": what for pin in batch}

    def _download(self, pins: list[Pin]) -> str:
        """Let pip download and compare; returns what went wrong, or nothing."""
        file = self.folder / "requirements.txt"
        file.write_text("".join(f"{replace(pin, marker='')}\n" for pin in pins), encoding="utf-8")
        environment = self.own if any("+" in pin.version for pin in pins) else self.usual
        command = [sys.executable, "-m", "pip", "download", *_options(self.machine)]
        command += [f"--dest={self.folder}", f"--requirement={file}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if "No module named pip" in done.stderr:
            hint = "install it, or run build.py with a Python that has it"
            raise UserError(f"wheelhouse: {sys.executable} has no pip", hint, EXIT_UNAVAILABLE)
        return _why(done.stderr) if done.returncode else ""


def cure(reasons: list[str]) -> str:
    """Return what to try against the reasons why wheels are not there."""
    again = "then run this again: what is there is kept"
    if any(reason.startswith(NOT_REACHED) for reason in reasons):
        return f"behind a mirror or TLS proxy: --index-url, --mirror, --ca-bundle; {again}"
    if any("no space left" in reason for reason in reasons):
        return f"free some space on the folder's disk, or take a folder on another; {again}"
    if any("another hash" in reason for reason in reasons):
        return f"ask another index, or bring the locked wheel: --wheelhouse DIR; {again}"
    return f"bring them from elsewhere: --wheelhouse DIR or --extra-index-url URL; {again}"


def _options(machine: Machine) -> list[str]:
    tag = "cp" + machine.python.replace(".", "")
    options = ["--quiet", "--disable-pip-version-check", "--no-input", "--progress-bar=off", "--retries=2"]
    options += ["--require-hashes", "--no-deps", "--only-binary=:all:"]
    options += [f"--python-version={machine.python}", "--implementation=cp"]
    options += [f"--abi={abi}" for abi in (tag, "abi3", "none")]
    return options + [f"--platform={platform}" for platform in platform_tags(machine.architecture)]


def _environment(spec: BackendSpec, sources: Sources, folder: Path) -> dict[str, str]:
    """Return pip's environment; addresses and certificates are files of the owner alone."""
    folder.mkdir()
    # The lock is all that counts: a constraint file of this machine could only contradict it.
    (folder / "none.txt").touch()
    variables = {**os.environ, "PIP_CONSTRAINT": str(folder / "none.txt")}
    secrets = sources.secrets(spec, folder)
    if "pip" in secrets:
        variables["PIP_CONFIG_FILE"] = str(secrets["pip"])
    if sources.ca_bundle:
        command = [sys.executable, "-m", "pip._vendor.certifi"]
        usual = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        files = [path for path in (sources.ca_bundle, Path(usual)) if path.is_file()]
        bundle = "\n".join(path.read_text(encoding="utf-8") for path in files)
        (folder / "ca.pem").write_text(bundle, encoding="utf-8")
        variables["PIP_CERT"] = str(folder / "ca.pem")
    return variables


def _why(output: str) -> str:
    """Return the telling line of pip's output, without the addresses that it names."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    if any("DO NOT MATCH" in line for line in lines):
        return "the index has a wheel of that name with another hash than the lock: refused"
    if any("No space left" in line for line in lines):
        return "no space left on device"
    if reach := OUT_OF_REACH.search(output):
        return f"{NOT_REACHED}: {reach[0]}"
    if any("No matching distribution" in line for line in lines):
        return "no index and no folder has it for this machine"
    return re.sub(r"\w+://\S+", "...", lines[-1].removeprefix("ERROR: ")) if lines else "pip failed"
