"""One process of `train --nproc`: the train command, quiet unless it is rank 0, that says how it ended."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from train.cli import call
from train.errors import EXIT_CHECK_FAILED
from train.launch_reports import VARIABLE, Reports
from train.stop import REQUEST, listen


def main() -> None:
    """Run the train command with the arguments of this process, as the rank that the environment says."""
    rank = int(os.environ["RANK"])
    reports = Reports(Path(os.environ[VARIABLE]))
    if rank:
        _be_quiet(reports.errors_path(rank))
    REQUEST.is_announced = False  # who started this process says it once for all
    listen()
    reports.came_up(rank)
    messages: list[str] = []
    try:
        code, is_crash = call(sys.argv[1:], messages.append), False
    except BaseException:  # the traceback of one rank is told by the process that started all
        messages.append(traceback.format_exc())
        code, is_crash = EXIT_CHECK_FAILED, True
    reports.ended(rank, code, "\n".join(messages), is_crash)
    sys.stdout.flush()
    sys.stderr.flush()
    # Not by sys.exit: what libraries do at the end of a process waits for ranks that are gone already.
    os._exit(code)


def _be_quiet(errors: Path) -> None:
    """stdout goes nowhere, stderr to a file: of all ranks, and below Python too."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    kept = os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(nowhere, 1)
    os.dup2(kept, 2)
