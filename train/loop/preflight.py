"""What can be wrong before anything heavy is loaded: folders and files. All of it at once, within a second."""

from __future__ import annotations

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
    if path.is_dir():
        raise UserError(f"{path}: is a folder, a file is due", hint, EXIT_DATA)
    try:
        with path.open("rb"):
            pass
    except OSError as fault:
        raise UserError(f"{path}: cannot be read: {fault.strerror}", hint, EXIT_DATA) from None


def claimable(folder: Path) -> None:
    """UserError (exit 78) where a run may not or cannot write its results here: nothing is ever written over."""
    if folder.is_dir():
        entries = sorted(entry.name for entry in folder.iterdir())
        if entries:
            raise UserError(
                f"--output {folder}: is not empty ({', '.join(entries[:5])})",
                "name a new folder, or remove the old results: a run never writes over another",
                EXIT_CONFIG,
            )
    place = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise UserError(
            f"--output {folder}: cannot be made: {place} is no folder that this user (uid {os.getuid()}) may write",
            "name one that is writable; in a container mount one: -v /path/to/out:/out",
            EXIT_CONFIG,
        )
