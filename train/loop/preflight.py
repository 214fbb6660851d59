"""What can be wrong before anything heavy is loaded: folders and files.

All of it at once, within a second.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from train.config import RunConfig
from train.errors import EXIT_CONFIG, EXIT_DATA, UserError
from train.loop.model import read_model_config


def check_places(config: RunConfig) -> None:
    """UserError with every place of the recipe that cannot serve; its exit code is that of the first."""
    data = [path for path in (config.data, config.eval_data) if path]
    checks: list[Callable[[], object]] = [lambda: read_model_config(config.model)]
    checks += [partial(_readable, path) for path in data]
    checks.append(lambda: claimable(config.output))
    faults = []
    for check in checks:
        try:
            check()
        except UserError as fault:
            faults.append(fault)
    if faults:
        messages = "\n".join(fault.message for fault in faults)
        hints = "; ".join(fault.hint for fault in faults if fault.hint)
        raise UserError(messages, hints, faults[0].exit_code)


def _readable(path: Path) -> None:
    hint = "--data takes a .jsonl or .json file; in a container mount it: -v /path/to/data:/data:ro"
    if path.exists() and not path.is_file():
        kind = "a folder" if path.is_dir() else "a pipe or a device, which can be read only once"
        raise UserError(f"{path}: is {kind}; a file is due", hint, EXIT_DATA)
    try:
        with path.open("rb"):
            pass
    except OSError as fault:
        raise UserError(f"{path}: cannot be read: {fault.strerror}", hint, EXIT_DATA) from None


def claimable(folder: Path) -> None:
    """UserError (exit 78) where a run may not or cannot write its results here: nothing is ever
    written over.
    """
    try:
        entries = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    except (OSError, ValueError) as fault:
        raise UserError(f"--output {str(folder)[:80]}: {fault}", "name another folder", EXIT_CONFIG) from None
    if entries and not (entries == ["run.json"] and _failed(folder / "run.json")):
        raise UserError(
            f"--output {folder}: is not empty ({', '.join(entries[:5])})",
            "name a new folder, or remove the old results: a run never writes over another",
            EXIT_CONFIG,
        )
    place = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise UserError(
            f"--output {folder}: cannot be made: {place} is no folder that uid {os.getuid()} may write",
            "name one that is writable; in a container mount one: -v /path/to/out:/out",
            EXIT_CONFIG,
        )


def _failed(manifest: Path) -> bool:
    """A run that failed before its first step left nothing but its word: the mended command may take
    its place.
    """
    try:
        return json.loads(manifest.read_text(encoding="utf-8"))["status"] == "failed"
    except (OSError, ValueError, KeyError, TypeError):
        return False
