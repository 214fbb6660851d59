"""What goes wrong on one rank ends all of them, soon, with one message and the right exit code."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.train.checks.build_infos import build_content
from tests.train.loop.conftest import read
from tests.train.loop.started import ended, fault, ranks_of, read_until, start
from train.errors import EXIT_DATA, EXIT_TRAINING

pytestmark = pytest.mark.slow


def test_a_rank_that_is_killed_ends_the_run_within_a_minute_and_is_named(recipe: dict[str, Any]) -> None:
    process = start(recipe, "max_steps=4000")
    read_until(process, "step 2/")
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    began = time.monotonic()
    code, _, errors = ended(process)
    assert time.monotonic() - began < 60
    assert code == EXIT_TRAINING
    assert errors.splitlines()[0] == (
        "error: rank 1 was killed by SIGKILL; the others cannot go on without it"
    )
    assert errors.splitlines()[-1].startswith("hint: where nobody sent it, memory of the host")
    assert "Traceback" not in errors


def test_a_bad_row_is_told_once(recipe: dict[str, Any]) -> None:
    path: Path = recipe["data"]
    path.write_text(path.read_text(encoding="utf-8") + '{"instruction": 3}\n', encoding="utf-8")
    code, _, errors = ended(start(recipe))
    assert code == EXIT_DATA
    assert errors.count("rows.jsonl:17") == 1
    assert sum(line.startswith("error: ") for line in errors.splitlines()) == 1
    assert read(recipe["output"] / "run.json")["status"] == "failed"


def test_out_of_memory_on_one_rank_stops_all_and_says_which(recipe: dict[str, Any], tmp_path: Path) -> None:
    patched = fault(tmp_path / "patch", "raise MemoryError('out of memory')", method="_forward_backward")
    code, out, errors = ended(start(recipe, "auto_batch=true", PYTHONPATH=patched))
    assert code == EXIT_TRAINING
    assert "note: auto_batch acts in runs of one process: out of memory stops this one" in out
    lines = errors.splitlines()
    assert lines[0].startswith("rank 1: error: out of memory in training, after step 1")
    assert any("auto_batch acts in runs of one process" in line for line in lines)
    assert "Traceback" not in errors


def test_a_fault_of_ours_on_one_rank_shows_its_traceback_once_with_the_rank(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    """Its last words are what the image's policy wants in the environment of processes that talk."""
    policy = {"precision": ["fp32"], "attention": ["sdpa"], "pinned_memory": False, "process_group": "gloo"}
    content = build_content(device_policy=policy | {"environment": {"OP_TIMEOUT": "120"}})
    image = tmp_path / "build-info.json"
    image.write_text(json.dumps(content), encoding="utf-8")
    act = "print(os.environ['OP_TIMEOUT'], file=sys.stderr); raise KeyError('broken here')"
    patched = fault(tmp_path / "patch", act)
    code, _, errors = ended(start(recipe, PYTHONPATH=patched, ISOTUNE_BUILD_INFO=str(image)))
    assert code == 1
    assert "rank 1: 120" in errors.splitlines()
    assert errors.count("Traceback") == 1
    assert errors.splitlines()[-1] == "rank 1: KeyError: 'broken here'"


def test_a_loss_that_is_not_finite_on_one_rank_is_known_to_all(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    act = "self.in_step.loss = float('nan')"
    patched = fault(tmp_path / "patch", act, method="_forward_backward")
    code, _, errors = ended(start(recipe, PYTHONPATH=patched))
    assert code == EXIT_TRAINING
    assert errors.splitlines()[0] == "error: step 2: loss is nan"
    assert read(recipe["output"] / "run.json")["reason"].startswith("step 2: loss is nan")


def test_a_full_disk_on_the_rank_that_writes_ends_all(recipe: dict[str, Any], tmp_path: Path) -> None:
    act = "raise OSError(28, 'No space left on device')"
    patched = fault(tmp_path / "patch", act, step=2, ranks="0", method="save_state")
    code, _, errors = ended(start(recipe, "save_steps=2", PYTHONPATH=patched))
    assert code == EXIT_TRAINING
    assert "step-2: the checkpoint cannot be written" in errors.splitlines()[0]
    assert sum("cannot be written" in line for line in errors.splitlines()) == 1


def test_a_step_that_hangs_is_ended_with_the_stacks_of_every_rank(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    patched = fault(tmp_path / "patch", "import time; time.sleep(600)", step=2)
    began = time.monotonic()
    code, _, errors = ended(start(recipe, "step_timeout_seconds=5", PYTHONPATH=patched))
    assert time.monotonic() - began < 120
    assert code == EXIT_TRAINING
    stacks = {rank: (recipe["output"] / f"stacks-{rank}.txt").read_text() for rank in (0, 1)}
    assert "in changed" in stacks[1]
    assert "train/loop/run.py" in stacks[0]
    assert "the step did not end within 5 s: the run hangs" in errors
    run = read(recipe["output"] / "run.json")
    assert (run["status"], run["reason"]) == (
        "failed", "the step did not end within 5 s: the run hangs",
    )  # fmt: skip
