"""What can be wrong before anything heavy is loaded: folders and files.

All of it at once, within a second.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from train import hub
from train.adapters.initial import check_init_adapter
from train.config import RunConfig
from train.data.sources import find_source
from train.data.template import read_template
from train.errors import EXIT_DATA, UserError
from train.loop.claim import claimable
from train.loop.model import read_model_config
from train.loop.processes import environment_rank


def check_places(config: RunConfig) -> None:
    """UserError with every place of the recipe that cannot serve; its exit code is that of the first."""
    data = [source.path for source in config.data]
    checks: list[Callable[[], object]] = [lambda: _model(config)]
    checks.append(lambda: check_init_adapter(config))
    checks += [partial(find_source, path) for path in (*data, *config.eval_sets().values())]
    checks.append(partial(_not_twice, data))
    if config.chat_template:
        checks.append(partial(read_template, config.chat_template))
    if environment_rank() == 0:  # to another one the folder is that of a run: rank 0's
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


def _model(config: RunConfig) -> None:
    """A model that is still to be downloaded can be looked into only then."""
    if hub.parse(config.model) is None or not config.allow_network:
        read_model_config(hub.resolved(config).model)


def _not_twice(paths: list[Path]) -> None:
    """UserError where two sources of training rows hold the same file: weights are there to repeat rows."""
    files: dict[Path, list[Path]] = {}
    for path in paths:
        with contextlib.suppress(UserError):  # said by the check of the path itself
            for file in find_source(path).files:
                files.setdefault(file.resolve(), []).append(path)
    if twice := {file: given for file, given in files.items() if len(given) > 1}:
        lines = [
            f"{file}: is read twice, by {' and '.join(map(str, given))}" for file, given in twice.items()
        ]
        raise UserError("\n".join(lines), "name it once; a weight repeats rows", EXIT_DATA)
