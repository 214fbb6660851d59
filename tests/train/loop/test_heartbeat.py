"""The heartbeat of a run, and the health check that reads it: a run is a process where one must die."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.train.loop.conftest import go
from train.loop import heartbeat
from train.loop.heartbeat import LIMIT_VARIABLE, PLACES, Heartbeat, health

RUN = """
import sys, time
from train.loop.heartbeat import HEARTBEAT
with HEARTBEAT.running([sys.argv[1]]):
    HEARTBEAT.beat("training", 7)
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def beating() -> Heartbeat:
    return Heartbeat()


def start_run(folder: Path) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", RUN, str(folder)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout
    assert process.stdout.readline() == "ready\n"
    return process


def check(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    code = f"from train.loop.heartbeat import main; main([{str(folder)!r}])"
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def test_a_run_beats_in_every_phase_and_takes_its_file_with_it(
    recipe: dict[str, Any], rows_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int]] = []
    files: list[Path | None] = []
    write = os.pwrite

    def noted(descriptor: int, data: bytes, offset: int) -> int:
        seen.append((heartbeat.HEARTBEAT.phase, heartbeat.HEARTBEAT.step))
        files.append(heartbeat.HEARTBEAT.path)
        return write(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", noted)
    fields = {"max_steps": 3, "save_steps": 2, "eval_data": rows_file, "eval_steps": 2, "num_generations": 1}
    go(recipe, **fields)
    phases = list(dict.fromkeys(phase for phase, _ in seen))
    start = ["preparing", "reading data", "loading the model", "generating", "evaluating"]
    assert phases == [*start, "training", "saving"]
    assert {step for phase, step in seen if phase == "training"} == {0, 1, 2, 3}
    assert ("saving", 2) in seen
    assert ("evaluating", 2) in seen
    assert files[0] is not None
    assert not files[0].exists()


def test_the_batches_of_a_long_step_are_signs_of_life(
    recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a limit that fits one batch would not fit many of them."""
    calls: list[int] = []
    monkeypatch.setattr(Heartbeat, "beat", lambda self, phase, step=None: calls.append(phase == "training"))
    go(recipe, max_steps=1, per_device_train_batch_size=1, gradient_accumulation_steps=8)
    assert sum(calls) >= 9


def test_a_run_that_gets_on_is_healthy_and_one_that_is_silent_is_not(tmp_path: Path) -> None:
    process = start_run(tmp_path)
    try:
        is_healthy, (line,) = health([str(tmp_path)], 1800, time.monotonic())
        assert is_healthy
        assert line.startswith(f"healthy: process {process.pid}, training, 7 steps done: last sign of life ")
        is_healthy, (line,) = health([str(tmp_path)], 1800, time.monotonic() + 1801)
        assert not is_healthy
        assert "training, 7 steps done: no sign of life for 18" in line
        assert LIMIT_VARIABLE in line
    finally:
        process.kill()
        process.wait()


def test_one_silent_run_among_several_makes_the_container_unhealthy(
    tmp_path: Path, beating: Heartbeat
) -> None:
    process = start_run(tmp_path)
    try:
        with beating.running([str(tmp_path)]):
            later = time.monotonic() + 100
            beating.descriptor, kept = None, beating.descriptor  # this one stays silent
            is_healthy, lines = health([str(tmp_path)], 50, later)
            assert len(lines) == 2
            assert not is_healthy
            beating.descriptor = kept
    finally:
        process.kill()
        process.wait()


def test_a_run_that_was_killed_is_no_active_run(tmp_path: Path) -> None:
    """Also while nobody has waited for it yet: a shell that is process 1 may never do so."""
    process = start_run(tmp_path)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert list(tmp_path.iterdir()) != []
    assert health([str(tmp_path)], 1, time.monotonic() + 9) == (True, ["healthy: no run is active"])
    process.wait()
    assert health([str(tmp_path)], 1, time.monotonic() + 9) == (True, ["healthy: no run is active"])


def test_a_later_process_with_the_number_of_a_dead_run_is_no_run(tmp_path: Path, beating: Heartbeat) -> None:
    with beating.running([str(tmp_path)]):
        (path,) = tmp_path.iterdir()
        text = path.read_text(encoding="utf-8")
        path.write_text(re.sub(r'"started": \d+', '"started": 5', text), encoding="utf-8")
        assert health([str(tmp_path)], 1, time.monotonic() + 9)[0]


def test_a_file_of_another_container_in_a_shared_folder_is_left_alone(
    tmp_path: Path, beating: Heartbeat
) -> None:
    with beating.running([str(tmp_path)]):
        (path,) = tmp_path.iterdir()
        path.rename(tmp_path / f"isotune-heartbeat-1-{os.getpid()}")
        assert health([str(tmp_path)], 1, time.monotonic() + 9) == (True, ["healthy: no run is active"])


def test_the_file_of_a_killed_run_with_the_same_number_is_replaced(
    tmp_path: Path, beating: Heartbeat
) -> None:
    """Process 1 of a container that was started again. A link that lies there is not followed either."""
    with beating.running([str(tmp_path)]):
        (path,) = tmp_path.iterdir()
    aim = tmp_path / "aim"
    aim.write_text("kept", encoding="utf-8")
    path.symlink_to(aim)
    with beating.running([str(tmp_path)]):
        assert not path.is_symlink()
        assert "preparing" in path.read_text(encoding="utf-8")
    assert aim.read_text(encoding="utf-8") == "kept"


def test_without_a_place_to_write_to_a_run_says_so_and_goes_on(tmp_path: Path, beating: Heartbeat) -> None:
    with beating.running([str(tmp_path / "none")]) as lines:
        beating.beat("training", 1)
        assert lines == [f"note: no heartbeat for health checks: none of {tmp_path / 'none'} can be written"]


def test_rows_that_follow_within_a_second_write_once(
    tmp_path: Path, beating: Heartbeat, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now[0])
    written: list[bytes] = []
    monkeypatch.setattr(os, "pwrite", lambda descriptor, data, offset: written.append(data))
    with beating.running([str(tmp_path)]):
        for _ in range(100):
            beating.beat("reading data")
        now[0] += 1.5
        beating.beat("reading data")
        beating.beat("training", 1)
    assert [b"reading" in data for data in written] == [False, True, True, False]
    assert {len(data) for data in written} == {heartbeat.WIDTH}


def test_the_check_answers_in_a_line_and_an_exit_code(tmp_path: Path) -> None:
    done = check(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "healthy: no run is active\n", "")
    process = start_run(tmp_path)
    try:
        assert check(tmp_path).stdout.startswith("healthy: process ")
        done = check(tmp_path, **{LIMIT_VARIABLE: "1e-9"})
        assert (done.returncode, done.stdout.partition(":")[0]) == (1, "unhealthy")
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("value", ["soon", "0", "-5", "nan"])
def test_a_limit_that_is_no_time_is_told(tmp_path: Path, value: str) -> None:
    done = check(tmp_path, **{LIMIT_VARIABLE: value})
    assert done.returncode == 1
    assert f"{LIMIT_VARIABLE}={value}" in done.stdout


def test_the_check_loads_no_library() -> None:
    code = "import sys, train.loop.heartbeat; print({m.partition('.')[0] for m in sys.modules} - known)"
    known = "import sys; known = {*sys.stdlib_module_names, 'train', '__main__'}; "
    done = subprocess.run(
        [sys.executable, "-S", "-c", known + code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"


def test_heartbeats_lie_where_the_entrypoint_looks_for_room() -> None:
    text = (ROOT / "images/entrypoint.sh").read_text(encoding="utf-8")
    match = re.search(r'first_writable "\$\{TMPDIR:-\}" (.*)\)', text)
    assert match
    assert tuple(match[1].split()) == PLACES
