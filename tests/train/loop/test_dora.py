"""A run with DoRA goes on as one without a stop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.train.loop.conftest import cut_back, exact, go


def test_a_run_with_dora_resumes_to_the_last_digit_and_says_what_computes_it(
    recipe: dict[str, Any], tmp_path: Path, without_drawing: None, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = recipe | {"lora": {"use_dora": True, "use_rslora": True, "lora_dropout": 0.1}}
    results = go(fields, output=tmp_path / "whole", save_steps=2).results
    assert results["gradients"] == "42 of 42 adapter tensors got a gradient"
    assert "note: lora.use_dora: PEFT's own layers compute DoRA" in capsys.readouterr().out
    folder = cut_back(tmp_path / "whole", recipe["output"], 2)
    go(fields)
    assert exact(folder) == exact(tmp_path / "whole")
