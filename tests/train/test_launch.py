"""How several processes are asked for, what torchrun is told, and what is said when they fail."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.train.checks.build_infos import build_content
from train import launch
from train.config import RunConfig
from train.errors import EXIT_TRAINING, EXIT_UNAVAILABLE, EXIT_USAGE, UserError
from train.launch_reports import LOST, Ending, Reports, verdict

WORKER = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
POD = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "job-0"}


def config(**fields: Any) -> RunConfig:
    given = {"adapter": "lora", "model": "m", "data": "d", "output": "o", "device": "cpu"}
    return RunConfig.model_validate(given | fields)


@pytest.mark.parametrize(
    ("nproc", "environment", "asked"),
    [
        (None, {}, None),
        ("2", {}, "2"),
        ("auto", {}, "auto"),
        (None, WORKER, None),
        ("auto", WORKER, None),
        ("2", WORKER, None),
        (None, {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "8"}, "8"),
        (None, {"PET_NNODES": "2"}, "1"),
        (None, WORKER | {"PET_NNODES": "2"}, None),
        (None, POD, None),
        ("8", POD, "8"),
    ],
)
def test_processes_are_started_where_asked_for_and_not_by_those_that_were(
    nproc: str | None, environment: dict[str, str], asked: str | None
) -> None:
    assert launch.asked_for(nproc, environment) == asked


@pytest.mark.parametrize("nproc", ["0", "two", "-1", ""])
def test_a_number_or_auto_is_due(nproc: str) -> None:
    with pytest.raises(UserError, match=f"--nproc {nproc}: a number from 1, or auto") as caught:
        launch.asked_for(nproc, {})
    assert "auto" in caught.value.hint
    assert caught.value.exit_code == EXIT_USAGE


def test_a_number_that_torchrun_contradicts_is_refused() -> None:
    with pytest.raises(UserError, match="--nproc 3: torchrun has started 2 processes already"):
        launch.asked_for("3", WORKER)


def test_more_processes_than_devices_are_refused_with_both_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "_num_devices", lambda device_type: 2)
    assert launch.plan(config(), "2", {}) is not None
    with pytest.raises(UserError, match="--nproc 3: there are 2 CPU cores") as caught:
        launch.plan(config(), "3", {})
    assert caught.value.exit_code == EXIT_UNAVAILABLE


def test_the_image_s_own_variable_says_which_devices_are_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    content = build_content(visible_devices_variable="VISIBLE_ONES")
    (tmp_path / "build-info.json").write_text(json.dumps(content), encoding="utf-8")
    monkeypatch.setenv("ISOTUNE_BUILD_INFO", str(tmp_path / "build-info.json"))
    monkeypatch.setattr(launch, "_num_devices", lambda device_type: 1)
    with pytest.raises(UserError, match="there are 1 CPU cores, VISIBLE_ONES is 3"):
        launch.plan(config(), "2", {"VISIBLE_ONES": "3"})


def test_one_process_needs_no_torchrun_unless_there_are_other_machines() -> None:
    assert launch.plan(config(), "1", {}) is None
    assert launch.plan(config(), "auto", {}) is None
    assert launch.plan(config(), "1", {"PET_NNODES": "2"}) is not None


@pytest.mark.parametrize(
    ("environment", "meeting"),
    [
        ({}, ("--standalone", "--local-addr", "127.0.0.1")),
        ({"WORLD_SIZE": "", "RANK": "", "MASTER_ADDR": ""}, ("--standalone", "--local-addr", "127.0.0.1")),
        ({"PET_NNODES": "1"}, ("--standalone", "--local-addr", "127.0.0.1")),
        ({"PET_NNODES": "2"}, ()),
        (POD, ("--nnodes", "2", "--node-rank", "1", "--master-addr", "job-0", "--master-port", "29500")),
    ],
)
def test_torchrun_is_told_where_processes_meet(environment: dict[str, str], meeting: tuple[str, ...]) -> None:
    assert launch._meeting(environment) == meeting


def test_each_process_gets_the_same_arguments_but_not_the_number() -> None:
    words = ["--adapter", "oft", "--nproc", "2", "--set", "seed=1"]
    assert launch.without_nproc(words) == ["--adapter", "oft", "--set", "seed=1"]
    assert launch.without_nproc(["--nproc=auto", "--config", "x"]) == ["--config", "x"]


def test_a_file_named_train_in_the_working_folder_is_not_taken_for_ours(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('the wrong one')\n")
    python = launch._python("launch_worker")
    done = subprocess.run(
        [*python[:2], python[2].replace("main()", "print(main.__module__)")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        check=False,
    )
    assert (done.stdout, done.returncode) == ("train.launch_worker\n", 0), done.stderr


Ended = Callable[..., Reports]


@pytest.fixture
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ended:
    """Reports of ranks that ended one after another."""

    def make(*endings: Ending, killed: dict[int, int] | None = None) -> Reports:
        from train import launch_reports

        made = Reports(tmp_path)
        for number, one in enumerate(endings):
            monkeypatch.setattr(launch_reports.time, "time", lambda at=number: float(at))
            made.ended(one.rank, one.code, one.message, one.is_crash)
        if killed:
            made.killed(killed)
        return made

    return make


def test_a_fault_that_all_ranks_have_is_told_once_without_a_rank(reports: Ended) -> None:
    told = reports(Ending(1, 65, "error: row 3"), Ending(0, 65, "error: row 3"))
    assert verdict(told, None) == (65, ["error: row 3"])


def test_the_first_fault_is_the_cause_and_its_rank_is_named(reports: Ended) -> None:
    told = reports(
        Ending(1, 70, "error: out of memory\nhint: less"),
        Ending(0, 1, "Traceback: connection closed", is_crash=True),
        Ending(2, 143, "error: stopped by SIGTERM; no checkpoint was saved"),
        killed={1: 70, 0: 1},
    )
    assert verdict(told, None) == (70, ["rank 1: error: out of memory", "rank 1: hint: less"])


def test_a_rank_that_was_killed_is_the_cause_and_not_who_missed_it(reports: Ended) -> None:
    told = reports(Ending(0, 1, "Traceback: connection closed", is_crash=True), killed={1: -9, 0: 1})
    told.errors_path(1).write_text("its last words\n")
    code, lines = verdict(told, None)
    assert code == EXIT_TRAINING
    assert lines[:2] == [
        "error: rank 1 was killed by SIGKILL; the others cannot go on without it",
        "rank 1: its last words",
    ]
    assert len(lines) == 3


def test_a_crash_shows_the_first_traceback_with_its_rank(reports: Ended) -> None:
    told = reports(Ending(1, 1, "KeyError: 'x'", is_crash=True), Ending(0, 1, "closed", is_crash=True))
    assert verdict(told, None) == (1, ["rank 1: KeyError: 'x'"])


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (Ending(1, 65, "error: row 3"), 65),
        (Ending(1, 1, "KeyError: 'x'", is_crash=True), 1),
        (Ending(1, -9), EXIT_TRAINING),
    ],
)
def test_a_lost_connection_is_the_cause_only_where_no_rank_here_has_another(
    reports: Ended, cause: Ending, code: int
) -> None:
    """It is seen at once, and a rank that crashes may still be writing its traceback."""
    missed = Ending(0, 70, f"error: {LOST}: reset by peer\nhint: its own log")
    told = verdict(reports(missed, cause), None)
    assert told[0] == code
    assert not any(LOST in line for line in told[1])


def test_where_the_other_node_is_gone_its_loss_is_told(reports: Ended) -> None:
    told = reports(Ending(3, 70, f"error: {LOST}: reset"), Ending(2, 70, f"error: {LOST}: closed"))
    assert verdict(told, None) == (70, [f"rank 3: error: {LOST}: reset"])


def test_who_only_heard_of_a_crash_of_rank_0_is_not_its_cause(reports: Ended) -> None:
    heard = "RuntimeError: rank 0 failed: KeyError('x')"
    told = reports(Ending(1, 1, heard, is_crash=True), Ending(0, 1, "KeyError: 'x'", is_crash=True))
    assert verdict(told, None) == (1, ["KeyError: 'x'"])


def test_a_stop_that_was_asked_for_is_told_once(reports: Ended) -> None:
    stop = "error: stopped by SIGTERM; step-3 is saved"
    told = reports(Ending(1, 75, stop), Ending(0, 75, stop), killed={1: 75, 0: 75})
    assert verdict(told, signal.SIGTERM) == (75, [stop])


def test_where_no_rank_came_up_it_is_said_why(reports: Ended) -> None:
    made = reports()
    assert verdict(made, signal.SIGINT) == (130, ["error: stopped by SIGINT; no checkpoint was saved"])
    made.failed_to_start("the port is taken")
    assert verdict(made, None) == (
        EXIT_TRAINING,
        ["error: the processes did not come up: the port is taken"],
    )


def test_the_command_refuses_more_processes_than_cores_before_anything_starts(
    train_command: Callable[..., subprocess.CompletedProcess[str]], recipe: dict[str, Any]
) -> None:
    places = [f"--{name}={recipe[name]}" for name in ("adapter", "model", "data", "output")]
    done = train_command("--nproc", "9999", *places, "--set", "device=cpu")
    assert done.returncode == EXIT_UNAVAILABLE
    assert done.stderr.startswith("error: --nproc 9999: there are ")
    assert not recipe["output"].exists()


@pytest.mark.parametrize(("ending", "alive"), [(-9, False), (1, True)])
def test_ranks_of_a_torchrun_that_was_killed_do_not_train_on(
    tmp_path: Path, ending: int, alive: bool
) -> None:
    """One that ended by itself has ended them: their numbers may be another's by now."""
    with subprocess.Popen(["sleep", "60"]) as rank:
        reports = SimpleNamespace(pids=lambda: {0: rank.pid})
        launch._kill_rest(SimpleNamespace(poll=lambda: ending, returncode=ending), reports)  # type: ignore[arg-type]
        with contextlib.suppress(subprocess.TimeoutExpired):
            rank.wait(0.5)
        assert (rank.poll() is None) is alive
        rank.kill()
