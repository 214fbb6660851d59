"""The curve shows evaluations beside the steps, whatever their sets are called."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from train.loop.metrics import EvaluationMetrics, StepMetrics
from train.results.curve import draw_loss

WITHOUT_HOME = """
import pwd, sys
from pathlib import Path
def unknown(uid):
    raise KeyError(uid)
pwd.getpwuid = unknown
from train.loop.metrics import StepMetrics
from train.results.curve import draw_loss
draw_loss([StepMetrics(1, 0.5, 3.0, 1e-3, 1.0, 10, 5, 0.1, 9)], Path(sys.argv[1]), "title", 6.0)
"""


def test_each_evaluation_set_is_a_line_of_its_own(tmp_path: Path) -> None:
    steps = [StepMetrics(step, step / 4, 3.0 - step / 4, 1e-3, 1.0, 10, 5, 0.1, 9) for step in range(1, 5)]
    evaluations = [EvaluationMetrics(step, step / 4, {"a": 3.0, "b$\\frac{$": 2.5}, 0.1) for step in (2, 4)]
    pictures = []
    for number in range(3):
        path = tmp_path / f"{number}.png"
        draw_loss(steps, path, "title", 6.0, evaluations[:number])
        pictures.append(path.read_bytes())
    assert len(set(pictures)) == 3


def test_a_user_without_a_home_gets_the_picture_too(tmp_path: Path) -> None:
    """A container may run as a uid that nobody knows, without HOME."""
    environment = {name: value for name, value in os.environ.items() if name not in ("HOME", "MPLCONFIGDIR")}
    environment |= {"PYTHONPATH": str(ROOT), "ISOTUNE_CACHE": str(tmp_path / "cache")}
    path = tmp_path / "loss.png"
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_HOME, path], capture_output=True, env=environment, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert path.exists()
    assert (tmp_path / "cache" / "matplotlib").is_dir()


def test_a_picture_that_cannot_be_drawn_is_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "missing" / "loss.png"
    draw_loss([StepMetrics(1, 0.5, 3.0, 1e-3, 1.0, 10, 5, 0.1, 9)], path, "title", 6.0)
    assert capsys.readouterr().out == f"note: {path} is not drawn: No such file or directory\n"
