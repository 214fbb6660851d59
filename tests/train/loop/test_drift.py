"""Rotations that stop being rotations: said, stopped, or mended in the middle of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from tests.train.loop.conftest import cut_back, exact, finding_lines, go, read, step_lines
from train.adapters import oft
from train.adapters.drift import STOP, WARN
from train.errors import EXIT_TRAINING, UserError

pytestmark = pytest.mark.usefixtures("without_drawing")


@pytest.fixture
def fast(recipe: dict[str, Any]) -> dict[str, Any]:
    """At this rate the series leaves the rotations within three steps."""
    return recipe | {"adapter": "oft", "learning_rate": 5e-2, "max_steps": 6}


def metrics(folder: Path) -> list[dict[str, Any]]:
    return step_lines(folder)


def test_the_exact_map_stays_orthogonal_at_a_high_learning_rate(fast: dict[str, Any]) -> None:
    results = go(fast, max_steps=12).results
    lines = metrics(fast["output"])
    assert [line["cayley"] for line in lines] == ["exact"] * 12
    assert max(line["orthogonality_error"] for line in lines) < 1e-5
    assert lines[-1]["skew_norm"] > 1  # where a series would diverge
    assert results["orthogonality_error"] < 1e-5


def test_lora_has_no_rotations_to_report(recipe: dict[str, Any]) -> None:
    go(recipe, max_steps=1)
    assert "orthogonality_error" not in metrics(recipe["output"])[0]


def test_a_series_that_has_drifted_stops_the_run(
    fast: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError) as caught:
        go(fast, oft={"cayley": "series"})
    assert caught.value.exit_code == EXIT_TRAINING
    errors = [line["orthogonality_error"] for line in metrics(fast["output"])]
    assert caught.value.message.startswith(f"step {len(errors) + 1}: largest |R R^T - I| is ")
    assert "oft.cayley=exact" in caught.value.hint
    assert WARN < errors[-1] < STOP
    assert capsys.readouterr().out.count("warning: step ") == 1
    found = [(line["name"], line["level"]) for line in finding_lines(fast["output"])]
    assert found == [("oft_series_drifts", "warning"), ("oft_series_drifts", "stop")]
    assert read(fast["output"] / "run.json")["status"] == "failed"


def test_a_drifted_series_goes_over_to_the_exact_map_when_asked(
    fast: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    results = go(fast, oft={"cayley": "series", "on_drift": "exact"}).results
    assert "exact Cayley map from here on" in capsys.readouterr().out
    lines = metrics(fast["output"])
    maps = [line["cayley"] for line in lines]
    first = maps.index("exact")
    assert 0 < first < len(lines) - 1
    assert set(maps[first:]) == {"exact"}
    assert all(line["orthogonality_error"] < WARN for line in lines[: first - 1])
    assert lines[first - 1]["orthogonality_error"] > WARN  # of the forward that made the run go over
    assert lines[-1]["orthogonality_error"] < 1e-5
    assert results["cayley"] == "exact"
    assert lines[-1]["loss"] < lines[first]["loss"]
    folder = fast["output"] / "adapter"
    assert read(folder / "adapter_config.json")["use_cayley_neumann"] is False
    base = AutoModelForCausalLM.from_pretrained(fast["model"], dtype=torch.float32)
    assert oft.orthogonality_error(PeftModel.from_pretrained(base, str(folder))) < 1e-5


def test_a_series_within_bounds_runs_to_its_end_without_a_word(
    fast: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    results = go(fast, learning_rate=1e-3, oft={"cayley": "series"}).results
    assert "warning: step" not in capsys.readouterr().out
    assert results["cayley"] == "series"
    assert 1e-6 < metrics(fast["output"])[-1]["orthogonality_error"] < WARN


def test_a_run_that_has_gone_over_resumes_to_the_last_digit(fast: dict[str, Any], tmp_path: Path) -> None:
    fields = {**fast, "oft": {"cayley": "series", "on_drift": "exact"}, "save_total_limit": 10}
    go(fields, output=tmp_path / "whole", save_steps=1)
    for step in (1, 5):
        folder = cut_back(tmp_path / "whole", tmp_path / f"from-{step}", step)
        go(fields, output=folder)
        assert exact(folder) == exact(tmp_path / "whole"), f"from step {step}"


def test_what_the_last_step_did_is_looked_at_too(fast: dict[str, Any]) -> None:
    with pytest.raises(UserError) as caught:
        go(fast, learning_rate=0.5, max_steps=1, oft={"cayley": "series"})
    assert caught.value.exit_code == EXIT_TRAINING
    assert caught.value.message.startswith("after the last step: largest |R R^T - I| is ")
    assert not (fast["output"] / "adapter").exists()
