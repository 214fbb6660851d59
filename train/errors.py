"""What goes wrong for a user, with its cure and its exit code."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

# sysexits, as DESIGN fixes them: scripts and Kubernetes policies rely on the numbers.
EXIT_CHECK_FAILED = 1
EXIT_USAGE = 64
EXIT_DATA = 65
EXIT_UNAVAILABLE = 69
EXIT_TRAINING = 70
EXIT_STOPPED = 75
EXIT_CONFIG = 78


class UserError(Exception):
    """A fault that the user can mend: printed as `error:` and `hint:` lines, never as a traceback.

    `message` names the place and the value; several faults of one kind are several lines of it.
    """

    def __init__(self, message: str, hint: str = "", exit_code: int = EXIT_USAGE) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code

    def __str__(self) -> str:
        lines = [f"error: {line}" for line in self.message.splitlines()]
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return "\n".join(lines)


LONGEST_PLACE = 200
"""Characters of a path that a message shows."""
MAKE_ROOM = "make room on that disk, or name a folder on another one"


def place_of(path: object) -> str:
    """A path as a message shows it: one that is overlong loses its middle."""
    text, half = str(path), LONGEST_PLACE // 2
    return text if len(text) <= LONGEST_PLACE else f"{text[:half]}...{text[-half:]}"


def is_disk_full(fault: BaseException) -> bool:
    """Whether a disk or a quota is full; safetensors and tokenizers say it in words alone."""
    full = (errno.ENOSPC, errno.EDQUOT)
    return getattr(fault, "errno", None) in full or any(os.strerror(code) in str(fault) for code in full)


def unreadable(path: Path | str, fault: OSError, hint: str = "", exit_code: int = EXIT_CONFIG) -> UserError:
    """What to tell of a path that the system does not let us look at or read."""
    if fault.errno in (errno.EACCES, errno.EPERM):
        may = f"let uid {os.getuid()} read it and enter the folders above it"
        hint = f"{may}; {hint}" if hint else may
    return UserError(f"{place_of(path)}: cannot be read: {fault.strerror or fault}", hint, exit_code)


@contextlib.contextmanager
def reading(path: Path | str, hint: str = "", exit_code: int = EXIT_CONFIG) -> Iterator[None]:
    """A fault of the system inside is a UserError that names `path`, with `hint` and `exit_code`."""
    try:
        yield
    except OSError as fault:
        raise unreadable(path, fault, hint, exit_code) from None


def unwritable(path: Path | str, fault: OSError, exit_code: int = EXIT_TRAINING) -> UserError:
    """What to tell of a path that cannot be written; a full disk has a cure of its own."""
    hint = MAKE_ROOM if is_disk_full(fault) else f"let uid {os.getuid()} write there, or name another folder"
    return UserError(f"{place_of(path)}: cannot be written: {fault.strerror or fault}", hint, exit_code)
