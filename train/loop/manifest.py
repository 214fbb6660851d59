"""run.json: what was run, on what, with what result.

Written when the run starts, rewritten as it learns more.
"""

from __future__ import annotations

import contextlib
import json
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from train import __version__
from train.config import RunConfig
from train.errors import EXIT_CONFIG, UserError
from train.loop.preflight import claimable


class Manifest:
    """The run.json of one run: always whole on disk. It says `running` until the run ends, or was killed."""

    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        self.path = path
        self.content = content
        self.write()

    @classmethod
    def create(cls, config: RunConfig) -> Manifest:
        """Claim the output folder.

        UserError (exit 78) where it holds something already, or cannot be written.
        """
        claimable(config.output)
        content = {
            "isotune": __version__,
            "status": "running",
            "started": _now(),
            "python": sys.version.split()[0],
            "recipe": config.model_dump(mode="json"),
            "seed": config.seed,
        }
        try:
            config.output.mkdir(parents=True, exist_ok=True)
            return cls(config.output / "run.json", content)
        except OSError as fault:
            raise UserError(
                f"--output {config.output}: cannot be written: {fault.strerror}",
                "name another folder",
                EXIT_CONFIG,
            ) from None

    def update(self, **fields: Any) -> None:
        self.content.update(fields)
        self.write()

    def finish(self, results: dict[str, Any]) -> None:
        self.update(status="finished", results=results, ended=_now())

    def close(self) -> None:
        """Where the run did not finish: keep why, as far as it is known."""
        if self.content["status"] == "running":
            fault = sys.exc_info()[1]
            reason = getattr(fault, "message", None) or repr(fault)
            with contextlib.suppress(OSError):  # a full disk is the fault that is already on its way
                self.update(status="failed", reason=reason, ended=_now())

    def write(self) -> None:
        """Replace the file in one move: a reader never sees half of it."""
        temporary = self.path.with_suffix(".json.tmp")
        temporary.write_text(json.dumps(self.content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        temporary.replace(self.path)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
