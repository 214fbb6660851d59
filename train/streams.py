"""stdout and stderr as they are found: closed, on a full disk, or with a reader that has gone away."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from typing import Any


def open_missing() -> None:
    """Give descriptors 0 to 2 and Python's streams a place where they were closed: nowhere.

    Else the next file that is opened takes such a number, and what is meant for stderr goes into it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number is this one
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


class _Lasting(io.FileIO):
    """A descriptor that is written to as long as that works; then what is written goes nowhere."""

    lost = ""
    """Why it cannot be written any more."""

    def write(self, content: Any, /) -> int:
        if not self.lost:
            try:
                return super().write(content)
            except BlockingIOError:
                raise
            except OSError as fault:
                self.lost = fault.strerror or str(fault)
                if self.fileno() == 1:
                    _note(f"note: stdout cannot be written ({self.lost}): the run goes on without its log\n")
        return memoryview(content).nbytes


def _note(line: str) -> None:
    with contextlib.suppress(OSError):  # both may go to one reader
        os.write(2, line.encode())


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """Meanwhile a run outlives its log: a reader that goes away, a full disk, a terminal that is closed.

    Streams that are no descriptor of this process's own, such as a test's, stay as they are.
    """
    with contextlib.ExitStack() as stack:
        for number, name in ((1, "stdout"), (2, "stderr")):
            stream = getattr(sys, name)
            if not isinstance(stream, io.TextIOWrapper) or not _is_descriptor(stream, number):
                continue
            with contextlib.suppress(OSError):
                stream.flush()
            made = io.TextIOWrapper(
                io.BufferedWriter(_Lasting(number, "w", closefd=False)),
                encoding=stream.encoding,
                errors=stream.errors,
                line_buffering=stream.line_buffering,
                write_through=stream.write_through,
            )
            setattr(sys, name, made)
            stack.callback(setattr, sys, name, stream)
            stack.callback(made.flush)
        yield


def settle() -> None:
    """Write what waits in the streams, or drop it where that fails: Python would end with 120 instead of the
    exit code.
    """
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, number)
            os.close(nowhere)


def _is_descriptor(stream: io.TextIOWrapper, number: int) -> bool:
    try:
        return stream.fileno() == number
    except OSError:
        return False
