"""What another program set in the environment does not decide how a run trains."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from train.config import RunConfig
from train.loop.run import run


def losses_of(recipe: dict[str, Any], output: Path) -> list[float]:
    run(RunConfig.model_validate({**recipe, "max_steps": 2, "output": output}))
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def test_variables_of_accelerate_do_not_change_what_the_recipe_asks_for(
    recipe: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As they stand in the environment of `accelerate launch`, or of an earlier run on transformers 4.57."""
    for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
        monkeypatch.delenv(name)
    plain = losses_of(recipe, tmp_path / "plain")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    capsys.readouterr()
    assert losses_of(recipe, tmp_path / "launched") == plain
    again = losses_of(recipe, tmp_path / "again")  # what the library left behind is no news
    assert again == plain
    (note,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ACCELERATE_"))
    assert "ACCELERATE_MIXED_PRECISION" in note
    assert note.endswith(": not heeded, the recipe alone decides")
