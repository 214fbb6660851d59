"""Runs of several processes for tests: `train --nproc` as its users start it, with faults put into ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

PATCH = """
import builtins, os, sys
_import = builtins.__import__
def _watch(name, *rest, **named):
    module = _import(name, *rest, **named)
    trainer = getattr(sys.modules.get("train.loop.trainer"), "RunTrainer", None)
    if trainer is not None and os.environ.get("RANK") in {ranks!r}:
        builtins.__import__ = _import
        _patch(trainer)
    return module
builtins.__import__ = _watch
def _patch(trainer):
    original = trainer.{method}
    def changed(self, *rest, **named):
        if self.state.global_step == {step}:
            {act}
        return original(self, *rest, **named)
    trainer.{method} = changed
"""
"""As sitecustomize.py: each rank that is named does `act` where it comes to a method of the trainer."""


def start(recipe: dict[str, Any], *sets: str, nproc: str = "2", **environment: str) -> subprocess.Popen[str]:
    """`train --nproc` on a recipe's adapter, model, data and output; the rest by --set, `sets` over it."""
    places = ("adapter", "model", "data", "output", "eval_data")
    options = [f"--{name.replace('_', '-')}={recipe[name]}" for name in places if name in recipe]
    fields = {name: str(value) for name, value in recipe.items() if name not in places}
    fields |= dict(text.split("=", 1) for text in sets)
    more = [f"--set={name}={value}" for name, value in fields.items()]
    path = environment.pop("PYTHONPATH", "")
    number = [f"--nproc={nproc}"] if nproc else []
    return subprocess.Popen(
        [sys.executable, "-c", "from train.cli import main; main()", *number, *options, *more],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{path}:{ROOT}", "OMP_NUM_THREADS": "1", **environment},
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of a start, once it has ended."""
    out, errors = process.communicate(timeout=300)
    return process.returncode, out, errors


def fault(folder: Path, act: str, step: int = 1, ranks: str = "1", method: str = "training_step") -> str:
    """A PYTHONPATH on which the named ranks do `act` after so many steps."""
    folder.mkdir()
    text = PATCH.format(act=act, step=step, ranks=tuple(ranks.split(",")), method=method)
    (folder / "sitecustomize.py").write_text(text, encoding="utf-8")
    return str(folder)


def read_until(process: subprocess.Popen[str], begins: str) -> None:
    """Read a start's stdout up to a line that begins so; the test fails where there is none."""
    assert process.stdout is not None
    assert any(line.startswith(begins) for line in process.stdout), process.communicate()


def ranks_of(process: subprocess.Popen[str]) -> dict[int, int]:
    """Rank -> process id of the processes below a start."""
    found: dict[int, int] = {}
    for place in Path("/proc").glob("[0-9]*"):
        try:
            command = (place / "cmdline").read_bytes()
            variables = (place / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        rank = [one[5:] for one in variables if one.startswith(b"RANK=")]
        is_worker = b"launch_worker" in command and b"launch_agent" not in command
        if is_worker and rank and _is_below(int(place.name), process.pid):
            found[int(rank[0])] = int(place.name)
    return found


def _is_below(pid: int, ancestor: int) -> bool:
    while pid > 1:
        if pid == ancestor:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Until it holds; the test fails where it does not in time."""
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.1)
