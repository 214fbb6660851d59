"""Faults of a device while it computes, or of the way to other processes: told with what they are and how to
go on, not with a traceback.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from train.checks.host.faults import explain
from train.errors import EXIT_TRAINING, EXIT_UNAVAILABLE, UserError
from train.image import read_build_info
from train.launch_reports import LOST

PINNED = ("pinned memory", "pin_memory", "mallochost", "hostalloc", "host_alloc")
OUT_OF_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "failed to allocate memory",
    "failed to apply for memory",
    "alloc_failed",
)
MISSING = ("could not run 'aten::", "not implemented for '", "there is no kernel", "no kernel image")
FAILED = (
    "lost heartbeat",
    "device lost",
    "device is lost",
    "device not found",
    "function error",
    "error code is",
    "cuda error",
    "hip error",
    "unspecified launch failure",
    "unrecognized error",
)
"""In the messages of torch's device types and of the libraries below them, in lower case."""
CUT_OFF = (
    "gloo/transport/tcp",
    "ncclremoteerror",
    "connection was likely closed",
    "connection closed by peer",
    "connection reset by peer",
)
"""In the messages of gloo, NCCL (RCCL has the same words) and torch's store where another process is gone or
does not answer."""
LONGEST = 400
"""Characters of a library's message that are shown."""


@contextlib.contextmanager
def told(output: Path | None = None) -> Iterator[None]:
    """Within it a device's fault becomes a UserError: exit 69, or 70 where memory does not suffice or another
    process is gone.

    output: of a run, whose checkpoints say where it would go on. Other errors pass as they are.
    """
    try:
        yield
    except RuntimeError as fault:
        error = told_as(fault, output)
        if error is None:
            raise
        raise error from fault


def told_as(fault: RuntimeError, output: Path | None = None) -> UserError | None:
    """The fault in words, with its cure; None where it is no such fault."""
    text = str(fault).lower()
    words = " ".join(str(fault).split())[:LONGEST]
    if error := _of_memory(text, words, output):
        return error
    if known := next(iter(explain(_known_errors(), str(fault))), None):
        return UserError(
            f"device: {known.cause}: {words}", f"{known.cure}{_goes_on(output)}", known.exit_code
        )
    if any(word in text for word in CUT_OFF):
        return UserError(
            f"{LOST}: {words.partition('. This is typically')[0]}",
            "it was killed, its host went down or the network broke: its own log, on its node, says more"
            f"{_goes_on(output)}",
            EXIT_TRAINING,
        )
    if any(word in text for word in MISSING):
        return UserError(
            f"device: an operator is missing: {words}",
            "another precision (--set precision=fp32) or attention (--set attn_implementation=eager), or the "
            "versions of the image's lock; train verify --device looks at each",
            EXIT_UNAVAILABLE,
        )
    if any(word in text for word in FAILED):
        return UserError(
            f"device: it failed: {words}",
            f"train doctor looks at the device{_goes_on(output)}",
            EXIT_UNAVAILABLE,
        )
    return None


def _of_memory(text: str, words: str, output: Path | None) -> UserError | None:
    if any(word in text for word in PINNED) and any(word in text for word in FAILED):
        return UserError(
            f"pinned memory: the device fails with it: {words}",
            f"--set pinned_memory=off{_goes_on(output)}",
            EXIT_UNAVAILABLE,
        )
    if any(word in text for word in OUT_OF_MEMORY):
        return UserError(
            f"out of memory: {words}",
            "a smaller batch or max_length, a larger device; eval, generate and merge: --device cpu",
            EXIT_TRAINING,
        )
    return None


def _known_errors() -> list[dict[str, Any]]:
    """The vendor's errors that the image's build info explains."""
    with contextlib.suppress(UserError):
        image = read_build_info()
        return image.content.get("errors", []) if image else []
    return []


def _goes_on(output: Path | None) -> str:
    """How a run goes on, where it has a checkpoint."""
    if output is None:
        return ""
    from train.loop.checkpoint import list_steps

    last = max(list_steps(output / "checkpoints"), default=None)
    if last is None:
        return "; the same command begins again, no checkpoint was written yet"
    return f"; the same command goes on after step {last}"
