"""Collect every wheel of a lock in a folder, each compared by hash, for a build without a network."""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from images import markers
from images.errors import EXIT_CHECK_FAILED, EXIT_CONFIG, EXIT_DATA, EXIT_UNAVAILABLE, UserError
from images.fetch import Fetcher, batches, cure
from images.lockfile import Lock
from images.machine import Machine, fits
from images.pins import Pin, normalise
from images.sources import Sources
from images.spec import BackendSpec
from images.spec_types import UNRESOLVED
from images.wheels import sha256_file

PART = ".part-"


@dataclass(frozen=True)
class State:
    """A folder against a lock. `wrong` are files that look right by name and are not the locked ones."""

    found: dict[str, Path]
    missing: list[Pin]
    wrong: list[str]

    @property
    def size_bytes(self) -> int:
        return sum(path.stat().st_size for path in self.found.values())


def wanted(spec: BackendSpec, lock: Lock, machine: Machine) -> list[Pin]:
    """Return the pins that one machine needs; raises UserError with every wheel of unknown hash."""
    tag = "cp" + machine.python.replace(".", "")
    faults = [
        f"images/locks/{spec.image}: {tag} {machine.architecture}: no hash is known of "
        f"{item['distribution']} {item['version']}"
        for item in lock.wheels
        if (item["python"], item["architecture"], item["sha256"]) == (tag, machine.architecture, UNRESOLVED)
    ]
    if faults:
        where = f"where {spec.torch.index} answers, or " if spec.torch.index else ""
        hint = f"python build.py lock {spec.selection}, {where}with the wheel in a folder: --wheelhouse DIR"
        raise UserError("\n".join(faults), hint, EXIT_CONFIG)
    variables = markers.environment(machine.python, machine.architecture)
    return [pin for pin in lock.pins if markers.holds(pin.marker, variables)]


def inspect(folder: Path, pins: list[Pin], machine: Machine) -> State:
    """Compare a folder with the pins; every candidate is hashed."""
    found: dict[str, Path] = {}
    missing, wrong = [], []
    candidates: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.whl")):
        if fits(path.name, machine):
            candidates.setdefault(normalise(path.name.partition("-")[0]), []).append(path)
    for pin in pins:
        for path in candidates.get(normalise(pin.name), []):
            digest = sha256_file(path)
            if digest in pin.hashes:
                found[pin.name] = path
            elif path.name.split("-")[1] == pin.version:
                wrong.append(f"{path}: sha256 {digest} is not in the lock")
        if pin.name not in found:
            missing.append(pin)
    return State(found, missing, wrong)


def collect(spec: BackendSpec, lock: Lock, folder: Path, machine: Machine, sources: Sources) -> State:
    """Fill the folder with what it lacks, wheel by wheel: one that was interrupted goes on where it was.

    Raises UserError with every wheel that is wrong or was not found; what was found is kept.
    """
    pins = wanted(spec, lock, machine)
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        state = inspect(folder, pins, machine)
        _refuse_wrong(state)
        if state.found:
            _say(f"{len(state.found)} of {len(pins)} wheels are there, compared by hash")
        faults = _fetch(spec, state.missing, folder, machine, sources)
        state = inspect(folder, pins, machine)
    if faults:
        told = [f"{name} for {machine}: {what}" for name, what in faults.items()]
        raise UserError("\n".join(told), cure(list(faults.values())), EXIT_CHECK_FAILED)
    return state


def require_complete(spec: BackendSpec, lock: Lock, folder: Path, machine: Machine) -> State:
    """Return the state of a folder that has all; raises UserError with every wheel that is not there."""
    state = inspect(folder, wanted(spec, lock, machine), machine)
    _refuse_wrong(state)
    if state.missing:
        lines = [f"{folder}: {pin.name} {pin.version} for {machine} is missing" for pin in state.missing]
        options = f"--architecture {machine.architecture} --python {machine.python}"
        hint = f"python build.py wheelhouse {spec.selection} {options} {folder}"
        raise UserError("\n".join(lines), hint, EXIT_CHECK_FAILED)
    return state


def summary(state: State, spec: BackendSpec, machine: Machine, folder: Path) -> str:
    """Return what a complete folder holds, the largest wheels first."""
    sizes = sorted(((path.stat().st_size, path.name) for path in state.found.values()), reverse=True)
    lines = [f"{size / 1e6:9.1f} MB  {name}" for size, name in sizes[:5]]
    if len(sizes) > 5:
        rest = sum(size for size, _ in sizes[5:])
        lines.append(f"{rest / 1e6:9.1f} MB  {len(sizes) - 5} others")
    total = f"{len(sizes)} wheels, {state.size_bytes / 1e6:.1f} MB"
    lines.append(f"{folder}: complete for {spec.image}, {machine}: {total}, each compared by hash")
    if spec.system_packages:
        names = ", ".join(sorted(spec.system_packages.versions))
        lines.append(f"note: a build without a network needs a --base-image that has {names}")
    return "\n".join(lines)


def _refuse_wrong(state: State) -> None:
    if state.wrong:
        hint = "take it out of the folder: it is damaged, rebuilt or forged; nothing was changed"
        raise UserError("\n".join(state.wrong), hint, EXIT_DATA)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder for this process, so that parts found in it are of one that was killed."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            message = f"{folder}: is being filled by another process"
            raise UserError(message, "wait for it, then run this again", EXIT_UNAVAILABLE) from error
        for part in folder.glob(f"{PART}*"):
            shutil.rmtree(part)
        yield
    finally:
        os.close(handle)


def _fetch(
    spec: BackendSpec, pins: list[Pin], folder: Path, machine: Machine, sources: Sources
) -> dict[str, str]:
    """Bring the pins into the folder; returns name -> what went wrong."""
    given = sources.wheelhouse
    near = inspect(given, pins, machine).found if given else {}
    faults: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix=PART, dir=folder) as name:
        part = Path(name)
        for path in near.values():
            shutil.copyfile(path, part / path.name)
            _keep(part, folder)
        fetcher = Fetcher(spec, sources, machine, part)
        for batch in batches([pin for pin in pins if pin.name not in near]):
            faults |= fetcher.fetch(batch)
            _keep(part, folder)
    return faults


def _keep(part: Path, folder: Path) -> None:
    """Move whole files only: a wheel in the folder is a complete one, whenever this stops."""
    for path in sorted(part.glob("*.whl")):
        _say(f"{path.stat().st_size / 1e6:9.1f} MB  {path.name}")
        path.replace(folder / path.name)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
