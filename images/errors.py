"""What goes wrong for a user of build.py, with its cure and its exit code."""

from __future__ import annotations

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
