"""Which signals stop a process in an orderly way, and that none of them is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.train.loop.conftest import read
from tests.train.loop.started import ended, read_until, start
from train.errors import EXIT_STOPPED

LISTENING = """
import os, signal, time
from train.stop import Stopped, listen
listen()
{act}
try:
    {inside}
    for _ in range(100):
        time.sleep(0.1)
except Stopped as stop:
    print(stop)
"""


def listening(inside: str, act: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LISTENING.format(inside=inside, act=act)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_is_an_orderly_stop(name: str) -> None:
    done = listening(f"signal.raise_signal(signal.{name})")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"stopped by {name}\n", "")


def test_a_hangup_that_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # which a child inherits, as from nohup
    try:
        done = listening("signal.raise_signal(signal.SIGHUP); print('goes on'); raise Stopped(15)")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (done.stdout, done.stderr) == ("goes on\nstopped by SIGTERM\n", "")


def test_a_signal_inside_a_finaliser_still_stops_and_shows_no_traceback() -> None:
    act = "class Ended:\n    def __del__(self):\n        signal.raise_signal(signal.SIGTERM)\n        len('')"
    done = listening("Ended(); print('goes on')", act)
    assert (done.returncode, done.stdout, done.stderr) == (0, "goes on\nstopped by SIGTERM\n", "")


def test_other_faults_of_a_finaliser_are_shown_as_ever() -> None:
    act = "class Ended:\n    def __del__(self):\n        raise KeyError('broken')"
    done = listening("Ended(); raise Stopped(15)", act)
    assert "KeyError: 'broken'" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("nproc", ["", "2"])
def test_a_closed_terminal_stops_a_run_with_a_checkpoint(recipe: dict[str, Any], nproc: str) -> None:
    process = start(recipe, "max_steps=4000", nproc=nproc)
    read_until(process, "step 2/")
    process.send_signal(signal.SIGHUP)
    code, _, errors = ended(process)
    assert code == EXIT_STOPPED, errors
    checkpoint = Path(recipe["output"]) / "checkpoints" / "step-"
    assert f"error: stopped by SIGHUP; {checkpoint}" in errors
    assert read(recipe["output"] / "run.json")["status"] == "stopped"
