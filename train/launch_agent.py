"""torchrun without its own log: it keeps which ranks failed first, and how, for whoever started it."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from train.launch_reports import VARIABLE, Reports


def main() -> None:
    """Run torchrun with the arguments of this process; exit 1 where a rank failed, as torchrun does."""
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
