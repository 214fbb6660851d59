"""Checkpoint folders on disk: written whole or not at all, checked by checksums, set aside where damaged."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.data.records import hash_file
from train.errors import EXIT_CONFIG, EXIT_TRAINING, UserError

CHECKSUMS = "checksums.json"
CONTENT = "checkpoint.json"
HALF = ".half"
"""Ends the name of a folder that is being written or removed: nothing of value."""
BAD = ".bad"
"""Ends the name of a folder that was set aside."""
STATE_FILES = ("optimizer.pt", "scheduler.pt", "rng_state.pt", "scaler.pt")
"""What an exact resume needs beyond weights, position and figures. scaler.pt: where a loss scale is used."""
DUE = (CONTENT, "trainer_state.json", "adapter_config.json", "adapter_model.safetensors", *STATE_FILES[:3])


@dataclass(frozen=True)
class Checkpoint:
    """A checked checkpoint: its folder, its checkpoint.json, and the state files it must do without.

    is_weights_only: more of them may turn out to be needed and not there.
    """

    folder: Path
    content: dict[str, Any]
    missing: tuple[str, ...] = ()
    is_weights_only: bool = False

    @property
    def step(self) -> int:
        return int(self.content["step"])


def checkpoint_adapter_config(folder: Path) -> dict[str, Any]:
    """The adapter_config.json of a checkpoint: which parametrisation its weights have."""
    return json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))


def list_steps(parent: Path) -> dict[int, Path]:
    """Step -> folder of all checkpoints with a good name, in order of steps."""
    found = {
        int(path.name[5:]): path
        for path in (parent.iterdir() if parent.is_dir() else ())
        if path.name.startswith("step-") and path.name[5:].isdecimal() and path.is_dir()
    }
    return dict(sorted(found.items()))


def write(parent: Path, step: int, fill: Callable[[Path], None]) -> Path:
    """Make `step-N` in `parent` from what `fill` puts into a folder; it has its name only once it is whole.

    On disk at every moment: the checkpoints before, and this one whole or under a name that ends in .half.
    UserError (exit 70) where it cannot be written.
    """
    folder = parent / f"step-{step}"
    half = folder.with_name(folder.name + HALF)
    try:
        parent.mkdir(parents=True, exist_ok=True)
        if half.is_dir() and not half.is_symlink():
            shutil.rmtree(half)
        else:
            half.unlink(missing_ok=True)
        half.mkdir()
        fill(half)
        _seal(half)
        half.replace(folder)
        sync(parent)
    except Exception as fault:  # a full disk has as many kinds as there are libraries that write
        shutil.rmtree(half, ignore_errors=True)
        last = max(list_steps(parent), default=None)
        kept = f"step-{last} is whole: the same command goes on from it" if last else "no other was made yet"
        raise UserError(
            f"{folder}: the checkpoint cannot be written: {fault}",
            f"is the disk full? make room; {kept}",
            EXIT_TRAINING,
        ) from None
    return folder


def _seal(folder: Path) -> None:
    """Put each file, then their checksums, then the folder itself on the disk."""
    files = {}
    for path in sorted(folder.iterdir()):
        sync(path)
        files[path.name] = {"sha256": hash_file(path), "bytes": path.stat().st_size}
    sums = folder / CHECKSUMS
    sums.write_text(json.dumps({"files": files}, indent=2) + "\n", encoding="utf-8")
    sync(sums)
    sync(folder)


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, would survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rotate(parent: Path, limit: int, kept: int | None = None) -> list[str]:
    """Remove the oldest checkpoints beyond `limit`, and leftovers. Returns what could not be removed.

    A folder loses its good name before it loses its first file. `kept`: a step whose checkpoint stays.
    """
    for step, path in list(list_steps(parent).items())[:-limit]:
        if step != kept:
            path.replace(path.with_name(path.name + HALF))
    return [f"note: {fault}" for fault in sweep(parent)[1]]


def sweep(parent: Path) -> tuple[list[str], list[OSError]]:
    """Remove what a killed run left half written or half removed: the names, and what kept some."""
    removed, faults = [], []
    for path in sorted(parent.glob(f"step-*{HALF}")):
        try:
            shutil.rmtree(path)
            removed.append(path.name)
        except OSError as fault:  # on a network mount a file that someone reads keeps its folder
            faults.append(fault)
    return removed, faults


def faults(folder: Path) -> dict[str, str]:
    """File -> what is wrong with it, for each file that checksums.json names and for that one itself."""
    try:
        files = json.loads((folder / CHECKSUMS).read_text(encoding="utf-8"))["files"]
        due = {str(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in files.items()}
    except FileNotFoundError:
        return {CHECKSUMS: "is missing"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {CHECKSUMS: "cannot be read"}
    found = {name: _fault(folder / name, *entry) for name, entry in due.items()}
    found |= {name: "is missing" for name in DUE if name not in due}
    return {name: fault for name, fault in found.items() if fault}


def _fault(path: Path, size: int, sha256: str) -> str:
    try:
        if path.stat().st_size != size:
            return f"has {path.stat().st_size} of {size} bytes"
        return "" if hash_file(path) == sha256 else "has another checksum"
    except FileNotFoundError:
        return "is missing"
    except OSError as fault:
        return f"cannot be read: {fault.strerror}"


def find(parent: Path, is_weights_only: bool) -> tuple[Checkpoint | None, list[str]]:
    """The newest whole checkpoint, and lines that say what was removed or set aside on the way to it.

    `is_weights_only`: damaged or missing state files are done without. UserError (exit 78) where there are
    checkpoints but not one is whole; all of them are then left as they are.
    """
    lines = [f"checkpoints: removed {name}, which was never finished" for name in sweep(parent)[0]]
    bad: list[tuple[Path, str]] = []
    for folder in reversed(list_steps(parent).values()):
        wrong = faults(folder)
        if not wrong or (is_weights_only and set(wrong) <= set(STATE_FILES)):
            lines += [_set_aside(path, reason) for path, reason in bad]
            content = json.loads((folder / CONTENT).read_text(encoding="utf-8"))
            return Checkpoint(folder, content, tuple(wrong), is_weights_only), lines
        bad.append((folder, "; ".join(f"{name} {fault}" for name, fault in wrong.items())))
    if bad:
        raise UserError(
            "\n".join(f"{path}: is no whole checkpoint: {reason}" for path, reason in bad),
            "where only optimizer, scheduler, scaler or rng_state are concerned: --set resume=weights-only; "
            f"to begin anew: another --output, or remove {parent}",
            EXIT_CONFIG,
        )
    return None, lines


def _set_aside(path: Path, reason: str) -> str:
    names = [f"{path.name}{BAD}", *(f"{path.name}{BAD}-{number}" for number in range(2, 1000))]
    free = next(path.with_name(name) for name in names if not path.with_name(name).exists())
    path.replace(free)
    return f"checkpoints: {path.name} is set aside as {free.name}: {reason}"
