"""build.py and a built image, as tests call them: from outside, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# `images` is no installed package: build.py finds it beside itself, a test finds it here.
sys.path.insert(0, str(ROOT))


@dataclass
class BuildCommand:
    """Runs build.py of a tree; the commit and its time do not matter here."""

    tree: Path = ROOT

    def __call__(self, *arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "build.py", *map(str, arguments)]
        variables = {**os.environ, **environment}
        return subprocess.run(
            command, cwd=self.tree, capture_output=True, text=True, env=variables, check=False
        )


@dataclass(frozen=True)
class Image:
    """A built image and what the build said."""

    reference: str
    digest: str
    log: str
    build: BuildCommand
    options: list[str]

    def build_again(self, *options: str) -> subprocess.CompletedProcess[str]:
        """Repeat the build of the same tree."""
        return self.build(*self.options, *options)

    def run(self, *command: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        """Run a command in it the hard way: no network, nothing to write to, a uid that it does not know."""
        hard = ["--rm", "--network=none", "--read-only", "--user=12345:0", *options]
        return subprocess.run(
            ["docker", "run", *hard, self.reference, *command], capture_output=True, text=True, check=False
        )
