"""A run outlives its log: a closed stdout, a reader that goes away, a full disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT

TRAIN = f"{sys.executable} -c 'from train.cli import main; main()'"


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash whose exit code is that of its first command, from the repository."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    whole = f"{line}; exit ${{PIPESTATUS[0]}}"
    return subprocess.run(
        ["bash", "-c", whole], capture_output=True, text=True, env=environment, cwd=ROOT, check=False
    )


def options(recipe: dict[str, Any]) -> str:
    places = {"adapter", "model", "data", "output"}
    named = [f"--{name}={recipe[name]}" for name in places]
    return " ".join([*named, *(f"--set={name}={recipe[name]}" for name in recipe.keys() - places)])


@pytest.mark.parametrize(
    ("given", "note"),
    [
        ("| head -1", "note: stdout cannot be written (Broken pipe): the run goes on without its log\n"),
        pytest.param(
            "> /dev/full",
            "note: stdout cannot be written (No space left on device): the run goes on",
            marks=pytest.mark.slow,
        ),
        (">&- 2>&- <&-", ""),
        pytest.param("2>&1 | true", "", marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_without_its_log(recipe: dict[str, Any], given: str, note: str) -> None:
    done = shell(f"{TRAIN} {options(recipe)} {given}")
    assert done.returncode == 0
    assert note in done.stderr
    assert done.stderr.count("\n") == bool(note)
    content = json.loads((recipe["output"] / "run.json").read_text(encoding="utf-8"))
    assert (content["status"], content["results"]["num_steps"]) == ("finished", 4)


def test_an_answer_that_cannot_be_written_is_a_fault() -> None:
    done = shell(f"{TRAIN} --json-schema > /dev/full")
    assert done.returncode == 70
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_exit_code_outlives_the_readers_of_its_message() -> None:
    assert shell(f"{TRAIN} --nonsense 2>&1 | true").returncode == 64
    assert shell(f"{TRAIN} --nonsense 2> /dev/full").returncode == 64
    assert shell(f"{TRAIN} --nonsense >&- 2>&-").returncode == 64


def test_what_is_meant_for_a_closed_stderr_goes_into_no_other_file(tmp_path: Path) -> None:
    text = (
        "import os, sys; from train.streams import open_missing; open_missing();"
        f"file = open({str(tmp_path / 'file')!r}, 'w'); os.write(2, b'lost'); print('lost', file=sys.stderr)"
    )
    assert shell(f'{sys.executable} -c "{text}" <&- >&- 2>&-').returncode == 0
    assert (tmp_path / "file").read_bytes() == b""


def test_build_py_needs_no_stdout() -> None:
    done = shell(f"{sys.executable} build.py list >&-")
    assert (done.returncode, done.stderr) == (0, "")
