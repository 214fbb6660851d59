"""Files of a run, an adapter or a model that hold another kind of JSON, or none: 78 with the file's name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train.adapters.saved import read_adapter_config
from train.config import RunConfig
from train.errors import EXIT_CONFIG, UserError
from train.loop import checkpoint
from train.loop.claim import claimable
from train.loop.metrics import MetricsFile
from train.loop.model import read_model_config
from train.results.describe import describe

DEEP = '{"a":' * 100_000


@pytest.mark.parametrize("content", [b"\xff\xfe\x00\x80\n", b"[]\n", b"5\n", DEEP.encode()])
def test_metrics_that_are_none_are_lines_that_are_missing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match="holds 0 lines up to step 2, 2 were written") as caught:
        MetricsFile(path, 2, 2)
    assert caught.value.exit_code == EXIT_CONFIG


@pytest.mark.parametrize("written", [[1], 5, {"data": [1]}, {"data": [{}]}])
def test_an_unfinished_run_whose_recipe_is_none_is_not_gone_on_with(
    recipe: dict[str, Any], tmp_path: Path, written: Any
) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"status": "running", "recipe": written}), encoding="utf-8")
    with pytest.raises(UserError, match="run.json: what it says of the recipe is no recipe") as caught:
        claimable(RunConfig.model_validate(recipe | {"output": tmp_path}))
    assert caught.value.exit_code == EXIT_CONFIG


def test_info_names_every_part_of_a_run_that_is_no_object(tmp_path: Path) -> None:
    content = {"status": "failed", "recipe": 5, "results": [1], "versions": "x"}
    (tmp_path / "run.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UserError, match=r"recipe: .*\n.*results: .*\n.*versions: ") as caught:
        describe(tmp_path)
    assert (caught.value.exit_code, caught.value.hint != "") == (EXIT_CONFIG, True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("base", []), ("base", {}), ("base", {"folder": "a", "files": 1}), ("versions", "x"),
     ("parametrisation", []), ("weights", 1), ("kind", None)],
)  # fmt: skip
def test_an_adapters_manifest_with_a_part_of_another_type_is_refused_by_all_who_read_it(
    copy_of: Callable[..., Path], name: str, value: Any
) -> None:
    folder = copy_of("lora")
    path = folder / "isotune.json"
    path.write_text(
        json.dumps(json.loads(path.read_text(encoding="utf-8")) | {name: value}), encoding="utf-8"
    )
    with pytest.raises(UserError, match=f"isotune.json: is not an adapter's manifest: .*{name}") as caught:
        read_adapter_config(folder)
    assert (caught.value.exit_code, caught.value.hint != "") == (EXIT_CONFIG, True)


def test_json_that_is_nested_too_deep_is_no_json(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(DEEP, encoding="utf-8")
    with pytest.raises(UserError, match="config.json: is not valid JSON"):
        read_model_config(tmp_path)
    (tmp_path / "run.json").write_text(DEEP, encoding="utf-8")
    with pytest.raises(UserError, match="run.json: is not valid JSON"):
        describe(tmp_path)


def test_a_file_in_place_of_a_half_checkpoint_gives_way(tmp_path: Path) -> None:
    (tmp_path / "step-3.half").write_text("x", encoding="utf-8")
    folder = checkpoint.write(tmp_path, 3, lambda half: (half / "a").touch())
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]
