"""Telemetry: samples of the cards in real runs, findings near limits, tools that misbehave."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_roots import OUTPUTS, needs_of, put_tool

from tests.train.checks.build_infos import build_content
from tests.train.loop.conftest import finding_lines, go, step_lines
from train.checks.host.cards import Card, Reading
from train.checks.host.root import Root
from train.errors import UserError
from train.image import VARIABLE
from train.loop.findings import Finding, Findings
from train.loop.metrics import CardSample, MetricsFile, StepMetrics
from train.loop.telemetry import Telemetry

Recipe = dict[str, Any]


def samples(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [line["telemetry"] for line in lines if "telemetry" in line]


@pytest.fixture
def with_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """A build info whose own device, the cpu here, has a vendor's tool: a script."""

    def put(script: str, name: str = "hy-smi") -> None:
        tool = put_tool(tmp_path, name, script)
        runtime = {"tool_folders": [str(tool.parent)]}
        content = build_content(telemetry=needs_of("hygon").telemetry, runtime=runtime)
        path = tmp_path / "build-info.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        monkeypatch.setenv(VARIABLE, str(path))

    return put


def test_a_run_holds_the_cards_it_was_on_and_their_extremes(
    short: Recipe, with_tool: Callable[[str], None], without_drawing: None
) -> None:
    with_tool(f"tail -n +2 '{OUTPUTS}/hy-smi-2025-dcu.txt'")
    outcome = go(short, telemetry_seconds=0.02)
    found = samples(short["output"])
    assert len(found) > 1
    assert found[0]["cards"][1] == {
        "index": 1,
        "power_watts": 588.0,
        "power_cap_watts": 600.0,
        "temperature_celsius": 71.0,
        "utilisation_percent": 99.0,
        "memory_percent": 85.0,
    }
    assert [line["step"] for line in found] == sorted(line["step"] for line in found)
    card = outcome.results["telemetry"]["1"]
    assert (card["max_power_watts"], card["mean_utilisation_percent"]) == (588.0, pytest.approx(99.0))
    assert [line["step"] for line in step_lines_alone(short["output"])] == [1, 2, 3, 4]
    (near,) = [one for one in finding_lines(short["output"]) if one["name"] == "card_near_power_cap"]
    assert near["seen"] == "card 1 draws 588 W of its cap of 600 W"
    assert near["level"] == "warning"


def step_lines_alone(folder: Path) -> list[dict[str, Any]]:
    return [line for line in step_lines(folder) if "telemetry" not in line]


def test_a_tool_that_hangs_never_disturbs_a_run(
    short: Recipe, with_tool: Callable[[str], None], without_drawing: None
) -> None:
    with_tool("sleep 60")
    started = time.monotonic()
    outcome = go(short, telemetry_seconds=0.01)
    assert outcome.results["num_steps"] == 4
    assert samples(short["output"]) == []
    assert time.monotonic() - started < 30
    assert "telemetry" not in outcome.results


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("head -c 100000 /dev/urandom", "said what no known version of it says"),
        ("exit 3", "failed with 3"),
        ("echo '0 what'", "said what no known version of it says"),
        ("kill -9 $$", "failed with -9"),
    ],
)
def test_a_tool_that_fails_is_one_note_with_the_reason(tmp_path: Path, script: str, reason: str) -> None:
    put_tool(tmp_path, "npu-smi", script)
    telemetry, metrics = made(tmp_path)
    telemetry._watch()  # ends by itself after three faults
    (note,) = found(telemetry)
    assert (note.name, note.level) == ("no_telemetry", "note")
    assert reason in note.seen
    assert metrics.path.read_text("utf-8") == ""


def test_an_absent_tool_is_one_note_before_the_first_step(tmp_path: Path) -> None:
    """Once, and the same whenever the run goes on: interrupted runs equal whole ones."""
    telemetry, metrics = made(tmp_path)
    for _ in range(2):
        with telemetry:
            assert not telemetry.thread.is_alive()
    (note,) = telemetry.findings.as_list()
    assert (note["name"], note["level"], note["step"], note["times"]) == ("no_telemetry", "note", 0, 1)
    assert note["seen"].endswith("npu-smi not here")
    assert len(metrics.path.read_text("utf-8").splitlines()) == 1


def test_zero_seconds_are_none(tmp_path: Path) -> None:
    put_tool(tmp_path, "npu-smi", f"tail -n +2 '{OUTPUTS}/npu-smi-25.2.0-910b4.txt'")
    telemetry, metrics = made(tmp_path)
    telemetry.seconds = 0.0
    with telemetry:
        time.sleep(0.1)
    assert telemetry.results() == {}
    assert metrics.path.read_text("utf-8") == ""


def test_the_cpu_has_neither_samples_nor_a_note(whole: Path) -> None:
    assert samples(whole) == []
    assert [one for one in finding_lines(whole) if "telemetry" in one["name"]] == []


def made(tmp_path: Path, tools: list[Any] | None = None) -> tuple[Telemetry, MetricsFile]:
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    findings = Findings(metrics, lambda _: None)
    telemetry = needs_of("ascend").telemetry | ({} if tools is None else {"tools": tools})
    return Telemetry(telemetry, 0.01, findings, Root(tmp_path), lambda: 7), metrics


def found(telemetry: Telemetry) -> list[Finding]:
    return list(telemetry.found)


def reading(**figures: Any) -> Reading:
    return Reading("smi", (Card(0, **figures),))


def test_three_samples_near_a_limit_are_one_warning_and_a_peak_is_none(tmp_path: Path) -> None:
    telemetry, _ = made(tmp_path)
    near, far = reading(power_watts=395, power_cap_watts=400), reading(power_watts=300, power_cap_watts=400)
    for one in (near, near, far, near, near):
        telemetry.take(one)
    assert found(telemetry) == []
    telemetry.take(near)
    assert [one.name for one in found(telemetry)] == ["card_near_power_cap"]
    telemetry.take(near)
    assert len(found(telemetry)) == 1


def test_heat_is_a_warning_of_its_own(tmp_path: Path) -> None:
    telemetry, _ = made(tmp_path)
    for _ in range(3):
        telemetry.take(reading(temperature_celsius=telemetry.telemetry["warn_celsius"]))
    (hot,) = found(telemetry)
    assert (hot.name, hot.level, hot.step) == ("card_hot", "warning", 7)


def test_figures_that_are_not_told_are_near_no_limit(tmp_path: Path) -> None:
    telemetry, _ = made(tmp_path)
    for _ in range(4):
        telemetry.take(reading())
        telemetry.take(reading(power_watts=900.0))
    assert found(telemetry) == []


def test_a_card_s_extremes_are_those_of_the_samples_that_tell_them(tmp_path: Path) -> None:
    telemetry, _ = made(tmp_path)
    for one in (
        reading(power_watts=10.0, utilisation_percent=20.0),
        reading(power_watts=30.0),
        reading(power_watts=20.0, utilisation_percent=60.0),
    ):
        telemetry.take(one)
    (card,) = telemetry.results()["telemetry"].values()
    assert card == {"num_samples": 3, "max_power_watts": 30.0, "mean_utilisation_percent": 40.0}


def test_a_tool_is_left_alone_after_three_faults_in_a_row(tmp_path: Path) -> None:
    telemetry, metrics = made(tmp_path)
    broken = Reading("npu-smi", (), "npu-smi gave no answer in 15 s")
    for one in (broken, broken, reading(power_watts=1.0), broken, broken):
        telemetry.take(one)
    assert found(telemetry) == []
    telemetry.take(broken)
    (note,) = found(telemetry)
    assert "npu-smi gave no answer in 15 s" in note.seen
    telemetry.num_faults = 3
    telemetry._watch()  # returns at once: it asks no more
    assert len(metrics.path.read_text("utf-8").splitlines()) == 1


def test_a_sample_is_on_the_disk_before_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    telemetry, metrics = made(tmp_path)
    synced: list[str] = []
    monkeypatch.setattr("os.fsync", lambda _: synced.append(metrics.path.read_text("utf-8")))
    telemetry.take(reading(power_watts=5.0))
    assert json.loads(synced[-1])["telemetry"]["cards"] == [{"index": 0, "power_watts": 5.0}]


def test_samples_are_counted_by_no_checkpoint_and_kept_up_to_it(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    for step in (1, 2):
        file.write(StepMetrics(step, 0.1, 1.0, 1e-3, 1.0, 5, 5, 1.0, 1))
        file.write_sample(CardSample(step, 0.5, [{"index": 0}]))
    file.close()
    again = MetricsFile(path, last_step=1, num_lines=1)
    assert [line.step for line in again.steps] == [1]
    again.close()
    assert [json.loads(line).get("telemetry", {}).get("step") for line in path.read_text().splitlines()] == [
        None,
        1,
    ]
    with pytest.raises(UserError):
        MetricsFile(path, last_step=1, num_lines=2)


def test_a_sample_after_the_run_s_end_is_no_fault(tmp_path: Path) -> None:
    telemetry, metrics = made(
        tmp_path, [{"command": "npu-smi info", "cards": ["^(?P<index>x)"], "healthy": []}]
    )
    metrics.close()
    put_tool(tmp_path, "npu-smi", "echo x")
    with telemetry:
        time.sleep(0.2)
    assert not telemetry.thread.is_alive()


def test_a_step_that_overflowed_is_json_too_and_read_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = MetricsFile(path)
    file.write(StepMetrics(1, 0.1, 1.0, 1e-3, float("inf"), 5, 5, 1.0, 1))
    file.close()

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    assert json.loads(path.read_text(), parse_constant=refuse)["grad_norm"] == "inf"
    again = MetricsFile(path, last_step=1, num_lines=1)
    assert again.steps[0].grad_norm == float("inf")
    again.close()
