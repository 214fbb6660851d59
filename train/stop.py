"""A stop by SIGTERM, SIGINT or SIGHUP: at once, or put off to a place where nothing is half done."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SECONDS_UNTIL_AGAIN = 0.05


class Stopped(BaseException):
    """A signal that ends the process in an orderly way.

    No Exception: nothing may take it for a fault of its own. `checkpoint`: where the run goes on from, None
    where there is none.
    """

    def __init__(self, number: int, checkpoint: Path | None = None) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}")
        self.number = number
        self.checkpoint = checkpoint
        self.hint = "the same command goes on from there"


@dataclass
class StopRequest:
    """The signal that was received, and whether acting on it has to wait. clear_line: goes before a message
    to a terminal on which a line is drawn again and again. is_announced: whether this process says that it
    was asked to stop; of many that were started together one does.
    """

    number: int | None = None
    is_put_off: bool = False
    clear_line: bytes = b""
    is_announced: bool = True

    def enforce(self) -> None:
        """Raise Stopped where a signal was received. Call it where nothing is half done."""
        if self.number is not None:
            raise Stopped(self.number)


REQUEST = StopRequest()
"""The process's own: signals belong to processes."""


def receive(number: int, frame: Any) -> None:
    """The signal handler. While putting off it only takes note, however often signals come."""
    first = REQUEST.number is None
    REQUEST.number = number
    if not REQUEST.is_put_off:
        raise Stopped(number)
    if (
        first and REQUEST.is_announced
    ):  # print() is not safe in a handler: the run may be inside another print()
        name = signal.Signals(number).name
        with contextlib.suppress(OSError):
            message = f"{name}: the run stops after this batch and saves a checkpoint\n"
            os.write(2, REQUEST.clear_line + message.encode())


def listen() -> None:
    """From now on SIGTERM, SIGINT and SIGHUP (the terminal is closed) raise Stopped; under nohup SIGHUP stays
    ignored.
    """
    # As process 1 of a container, a process without a handler never sees SIGTERM: the kernel keeps it back.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, receive)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, receive)
    sys.unraisablehook = functools.partial(_swallowed, sys.unraisablehook)


def _swallowed(others: Callable[[Any], Any], unraisable: Any) -> None:
    """Where a signal comes inside a finaliser or a library's callback, Python drops the Stopped with a
    traceback: send the signal once more, when that is over.
    """
    stop = unraisable.exc_value
    if not isinstance(stop, Stopped):
        others(unraisable)
        return
    again = threading.Timer(SECONDS_UNTIL_AGAIN, os.kill, (os.getpid(), stop.number))
    again.daemon = True
    again.start()


@contextlib.contextmanager
def put_off() -> Iterator[StopRequest]:
    """Signals wait for `enforce`, which is called at the latest at the end of this context."""
    REQUEST.is_put_off = True
    try:
        yield REQUEST
    finally:
        REQUEST.is_put_off = False
    REQUEST.enforce()
