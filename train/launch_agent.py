"""torchrun without its own log: it keeps which ranks failed first, and how, for whoever started it."""

from __future__ import annotations

import ctypes
import logging
import os
import shutil
import signal
import sys
from pathlib import Path

from train.launch_reports import VARIABLE, Reports

PR_SET_PDEATHSIG = 1
"""prctl(2): which signal a process gets when the one that started it is gone."""


def main() -> None:
    """Run torchrun with the arguments of this process; exit 1 where a rank failed, as torchrun does."""
    parent = os.getppid()
    end_with_parent()
    try:
        _run()
    finally:
        if os.getppid() != parent:  # it was killed, and can remove nothing any more
            shutil.rmtree(os.environ[VARIABLE], ignore_errors=True)


def end_with_parent() -> None:
    """SIGTERM for this process when its parent ends, be it by SIGKILL; where the system knows no such thing,
    nothing changes.
    """
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl:
        prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGTERM))


def _run() -> None:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    logging.disable(logging.CRITICAL)  # pages of tracebacks that say `exitcode: 1`
    reports = Reports(Path(os.environ[VARIABLE]))
    try:
        run(parse_args(sys.argv[1:]))
    except ChildFailedError as fault:
        reports.killed({rank: failure.exitcode for rank, failure in fault.failures.items()})
        sys.exit(1)
    except Exception as fault:  # a rendezvous that fails raises many kinds
        reports.failed_to_start(str(fault).strip() or repr(fault))
        sys.exit(1)
