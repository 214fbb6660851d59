"""run.json: what was run, on what, with what result.

Written when the run starts, rewritten as it learns more.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from train import __version__
from train.config import RunConfig
from train.errors import EXIT_CONFIG, UserError, unwritable
from train.loop import processes
from train.loop.claim import read_manifest
from train.stop import Stopped

ESCAPED = "backslashreplace"
"""Names of files need not be UTF-8: what Python holds for such a byte is written as JSON's own escape."""


class Manifest:
    """The run.json of one run: always whole on disk. It says `running` until the run ends, or was killed."""

    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        self.path = path
        self.content = content
        self.write()

    @classmethod
    def create(cls, config: RunConfig) -> Manifest:
        """That of a run which begins; UserError (exit 78) where the folder cannot be written."""
        content = {
            "isotune": __version__,
            "status": "running",
            "started": _now(),
            "python": sys.version.split()[0],
            "recipe": config.as_asked(),
            "seed": config.seed,
        }
        return cls._at(config, content)

    @classmethod
    def go_on(cls, config: RunConfig, step: int) -> Manifest:
        """That of a run which goes on from the checkpoint of `step`: what it says of the start is kept."""
        content = {
            key: value
            for key, value in read_manifest(config.output).items()
            if key not in ("reason", "ended", "results")
        }
        resumed = [*content.get("resumed", []), {"at": _now(), "step": step}]
        changed = {"status": "running", "recipe": config.as_asked(), "resumed": resumed}
        return cls._at(config, content | changed)

    @classmethod
    def _at(cls, config: RunConfig, content: dict[str, Any]) -> Manifest:
        try:
            return cls(config.output / "run.json", content)
        except OSError as fault:
            raise unwritable(f"--output {config.output}", fault, EXIT_CONFIG) from None

    def update(self, **fields: Any) -> None:
        """Write these fields too; UserError (exit 70) where the file cannot be written any more."""
        self.content.update(fields)
        try:
            self.write()
        except OSError as fault:
            raise unwritable(self.path, fault) from None

    def finish(self, results: dict[str, Any]) -> None:
        self.update(status="finished", results=results, ended=_now())

    def close(self) -> None:
        """Where the run did not finish: keep why, as far as it is known."""
        if self.content["status"] == "running":
            fault = sys.exc_info()[1]
            reason = getattr(fault, "message", None) or repr(fault)
            is_stopped = isinstance(fault, Stopped) and fault.checkpoint is not None
            with contextlib.suppress(UserError):  # a full disk is the fault that is already on its way
                self.update(status="stopped" if is_stopped else "failed", reason=reason, ended=_now())

    def write(self) -> None:
        """Replace the file in one move: a reader never sees half of it. Of several processes one writes."""
        if not processes.is_first():
            return
        replace_text(self.path, json.dumps(self.content, indent=2, ensure_ascii=False) + "\n")


def replace_text(path: Path, text: str) -> None:
    """Put a text on the disk in place of a file's, whole or not at all; OSError leaves the file as it was."""
    temporary = path.with_suffix(f"{path.suffix}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", errors=ESCAPED) as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
