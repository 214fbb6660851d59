"""Checks in a process of their own, while the others go on: a machine has a second core."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from train.checks.report import Report, Result

Checks = list[tuple[str, Callable[[], str]]]


@dataclass
class Beside:
    """Checks that a forked process makes: it has all that this one has imported."""

    part: str
    names: list[str]
    process: BaseProcess
    received: Connection

    def results(self, attempts: list[str]) -> list[Result]:
        """Wait, and return what came out; a check that the process did not live to tell has failed.

        The process's own attempts to reach the network are added to `attempts`.
        """
        try:
            results, own = self.received.recv()
        except EOFError:
            self.process.join()
            fault = f"its process ended with {self.process.exitcode}"
            return [Result(self.part, name, "failed", 0.0, fault) for name in self.names]
        self.process.join()
        attempts += own
        return list(results)


def start_beside(part: str, checks: Checks, attempts: list[str]) -> Beside:
    """Start a process for these checks; `attempts` is the list that `watch_network` fills there too.

    To be called before this process has computed anything with threads: a fork takes none of them along.
    """
    context = multiprocessing.get_context("fork")
    received, sent = context.Pipe(duplex=False)
    process = context.Process(target=_make, args=(part, checks, attempts, sent), daemon=True)
    process.start()
    sent.close()
    return Beside(part, [name for name, _ in checks], process, received)


def _make(part: str, checks: Checks, attempts: list[str], sent: Connection) -> None:
    report, known = Report(""), len(attempts)
    for name, check in checks:
        report.check(part, name, check)
    sent.send((report.results, attempts[known:]))
