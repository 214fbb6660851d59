"""Where a run is: one live line on a terminal, plain lines in a log."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TextIO

from train.loop.metrics import StepMetrics
from train.stop import REQUEST

if TYPE_CHECKING:
    from rich.live import Live

CLEAR_LINE = b"\r\x1b[2K"
SECONDS_BETWEEN = 0.1
"""The live line is drawn this often at most."""


class Progress:
    """Says each logged step on `stream`, while it is entered on a terminal as one line that changes.

    Other lines that are printed meanwhile go above the live one. No colours, so NO_COLOR has nothing to
    switch off.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stdout
        self.live: Live | None = None
        self.shown = ""
        self.drawn = 0.0
        self.aside_seconds = 0.0
        """Of evaluations since the last logged step: they train no token."""

    def __enter__(self) -> Progress:
        if is_terminal(self.stream):
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self.stream, no_color=True, highlight=False)
            with_stderr = sys.stderr.isatty()  # else it goes elsewhere, and stays there
            self.live = Live(console=console, auto_refresh=False, redirect_stderr=with_stderr)
            self.live.start()
            REQUEST.clear_line = CLEAR_LINE if with_stderr else b""
        return self

    def __exit__(self, *fault: Any) -> None:
        REQUEST.clear_line = b""
        if self.live:
            self._draw(self.shown)
            self.live.stop()
            self.live = None

    def logged(self, step: StepMetrics, previous: StepMetrics | None, max_steps: int) -> None:
        """A line of metrics was written; `previous`: the one before it."""
        seconds = step.seconds - (previous.seconds if previous else 0.0) - self.aside_seconds
        self.aside_seconds = 0.0
        line = step_line(step, max_steps, step.num_tokens / max(seconds, 1e-9))
        if self.live:
            self._draw(line)
        else:
            print(line, file=self.stream, flush=True)

    def stepped(self, step: int, max_steps: int) -> None:
        """A step ended; where it is not a logged one its number alone is new."""
        if self.live and time.monotonic() - self.drawn >= SECONDS_BETWEEN:
            figures = self.shown.partition("  ")[2]
            self._draw(f"step {step}/{max_steps}  {figures}".rstrip())

    def _draw(self, line: str) -> None:
        from rich.text import Text

        self.shown, self.drawn = line, time.monotonic()
        if self.live:
            self.live.update(Text(line, no_wrap=True, overflow="ellipsis"), refresh=True)


def is_terminal(stream: TextIO) -> bool:
    """Whether a line can be drawn again in place: a file, a pipe and a pod's log keep all that is written."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb", "unknown")


def step_line(step: StepMetrics, max_steps: int, tokens_per_second: float) -> str:
    """A step in words. The time left is that of the steps so far, evaluations counted in."""
    left = step.seconds / step.step * (max_steps - step.step)
    return (
        f"step {step.step}/{max_steps}  loss {step.loss:.4f}  lr {step.learning_rate:.2e}  "
        f"grad norm {step.grad_norm:.3f}  {tokens_per_second:,.0f} tokens/s  "
        f"peak {step.peak_memory_bytes / 1e9:.1f} GB  {timedelta(seconds=round(left))} left"
    )
