"""Runs that are broken on purpose: what acts on them, and what they leave."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.train.loop.conftest import finding_lines, go, read
from train.errors import EXIT_TRAINING, UserError
from train.loop.callback import RunCallback

Step = Callable[[RunCallback, int], None]


def kept(folder: Path) -> dict[str, str]:
    """Name -> level of a run's findings, which metrics.jsonl and run.json agree on."""
    held = read(folder / "run.json")["results"]["findings"]
    lines = finding_lines(folder)
    assert [{key: one[key] for key in lines[0]} for one in held] == lines if lines else not held
    assert all(one["cause"] and one["cure"] and one["times"] >= 1 for one in held)
    return {one["name"]: one["level"] for one in held}


def stopped(recipe: dict[str, Any], **fields: Any) -> UserError:
    """The fault of a run that stops by a finding, which is kept all the same."""
    with pytest.raises(UserError) as caught:
        go(recipe, **fields)
    assert caught.value.exit_code == EXIT_TRAINING
    assert read(recipe["output"] / "run.json")["status"] == "failed"
    assert "stop" in kept(recipe["output"]).values()
    return caught.value
