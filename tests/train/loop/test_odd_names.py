"""Names of files that are no UTF-8, which Linux allows: a run takes them, and its files stay JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from train.config import RunConfig
from train.errors import EXIT_CONFIG, UserError
from train.loop.claim import claimable


def test_a_run_with_data_whose_name_is_not_utf8_ends_and_its_files_stay_json(
    recipe: dict[str, Any], few_rows: Path, tmp_path: Path, without_drawing: None
) -> None:
    from train.loop.run import run

    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    odd.mkdir()
    data = odd / "rows.jsonl"
    data.write_bytes(few_rows.read_bytes())
    config = RunConfig.model_validate(recipe | {"data": data, "max_steps": 1, "save_steps": 1})
    run(config)
    for path in (config.output / "run.json", config.output / "checkpoints" / "step-1" / "checkpoint.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        assert str(data) in json.dumps(content, ensure_ascii=False)


def test_an_output_whose_name_is_not_utf8_is_refused_before_the_work(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    with pytest.raises(UserError, match="is not UTF-8 text") as caught:
        claimable(RunConfig.model_validate(recipe | {"output": odd}))
    assert caught.value.exit_code == EXIT_CONFIG
