"""A run that hangs is ended with its stacks; one that goes on is left alone."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from train.errors import EXIT_TRAINING
from train.loop.watchdog import ALLOWANCES, Watchdog

HUNG = """
import sys, time
from pathlib import Path
from train.loop.watchdog import Watchdog
def stuck_here():
    time.sleep(60)
with Watchdog(0.1, Path(sys.argv[1]), int(sys.argv[2]), lambda reason: print(reason, flush=True)) as dog:
    dog.allow("step")
    stuck_here()
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_a_step_that_hangs_ends_the_process_and_leaves_its_stacks(tmp_path: Path, rank: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HUNG, str(tmp_path), str(rank)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=30,
        check=False,
    )
    assert done.returncode == EXIT_TRAINING
    assert done.stdout == "the step did not end within 0.1 s: the run hangs\n"
    assert "stuck_here" in (tmp_path / f"stacks-{rank}.txt").read_text()
    assert "stuck_here" in done.stderr
    prefix = "rank 1: " if rank else ""
    said = [line for line in done.stderr.splitlines() if line.startswith(f"{prefix}error: ")]
    assert said == [f"{prefix}error: the step did not end within 0.1 s: the run hangs"]


def test_a_phase_has_its_own_allowance_and_steps_that_end_start_it_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[str] = []
    monkeypatch.setattr(Watchdog, "_end", lambda self: ends.append(self.phase))
    with Watchdog(0.2, tmp_path, 0, print) as dog:
        assert dog.limit("checkpoint") == pytest.approx(0.2 * ALLOWANCES["checkpoint"])
        for _ in range(4):
            dog.allow("step")
            time.sleep(0.1)
        dog.allow("checkpoint")
        time.sleep(0.3)
        assert ends == []
        dog.allow("step")
        time.sleep(0.4)
        assert ends == ["step"]


def test_nothing_is_watched_where_it_is_off_nor_after_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[str] = []
    monkeypatch.setattr(Watchdog, "_end", lambda self: ends.append(self.phase))
    with Watchdog(0, tmp_path, 0, print) as off:
        off.allow("step")
        assert off.deadline is None
    with Watchdog(0.02, tmp_path, 0, print) as dog:
        pass
    dog.allow("step")
    time.sleep(0.15)
    assert ends == []


DEAD_DISK = """
import os, sys, time
from pathlib import Path
from train.loop.watchdog import Watchdog
folder = Path(sys.argv[1])
os.mkfifo(folder / "stacks-0.txt")  # to open it waits for a reader that never comes
with Watchdog(0.1, folder, 0, lambda reason: time.sleep(60)) as dog:
    dog.patience = 0.2
    dog.allow("checkpoint")
    time.sleep(60)
"""


def test_storage_that_hangs_does_not_keep_the_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DEAD_DISK, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=30, check=False)
    assert done.returncode == EXIT_TRAINING
    assert "error: the checkpoint did not end within 0.4 s: the run hangs" in done.stderr


@pytest.mark.parametrize("seconds", [1e12, 1e308])
def test_a_limit_longer_than_a_lock_can_wait_is_watched_all_the_same(tmp_path: Path, seconds: float) -> None:
    with Watchdog(seconds, tmp_path, 0, print):
        [thread] = [one for one in threading.enumerate() if one.name == "watchdog"]
        thread.join(0.1)
        assert thread.is_alive()
    thread.join(5)
    assert not thread.is_alive()
