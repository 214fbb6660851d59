"""What can be wrong before anything heavy is loaded: folders and files.

All of it at once, within a second.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from train.adapters.initial import check_init_adapter
from train.config import RunConfig
from train.errors import EXIT_DATA, UserError
from train.loop.claim import claimable
from train.loop.model import read_model_config


def check_places(config: RunConfig) -> None:
    """UserError with every place of the recipe that cannot serve; its exit code is that of the first."""
    data = [config.data, *config.eval_sets().values()]
    checks: list[Callable[[], object]] = [lambda: read_model_config(config.model)]
    checks.append(lambda: check_init_adapter(config))
    checks += [partial(_readable, path) for path in data]
    checks.append(lambda: claimable(config))
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
