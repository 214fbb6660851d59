"""What goes wrong for a user of build.py, with its cure and its exit code."""

from __future__ import annotations

import errno
import os

# sysexits, as the design fixes them: scripts rely on the numbers.
EXIT_CHECK_FAILED = 1
EXIT_USAGE = 64
EXIT_DATA = 65
EXIT_UNAVAILABLE = 69
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


def told(error: OSError) -> UserError:
    """Return what to tell of a fault of this host's files, whichever it is."""
    where = error.filename or "a file of this host"
    hint = "name a place that exists, is of the kind that is due, and may be read and written"
    return disk_full(error) or UserError(f"{where}: {error.strerror or error}", hint, EXIT_CONFIG)


def disk_full(error: OSError) -> UserError | None:
    """Return what to tell of a full disk of this host, or None if the fault is another."""
    # Copying a folder collects its faults as text alone.
    words = os.strerror(errno.ENOSPC)
    if error.errno not in (errno.ENOSPC, errno.EDQUOT) and words not in str(error):
        return None
    where = error.filename or "a disk of this host"
    hint = "free some space there, or take another disk: TMPDIR=DIR, another --output or wheelhouse DIR"
    return UserError(f"{where}: {error.strerror or words}", hint, EXIT_UNAVAILABLE)
