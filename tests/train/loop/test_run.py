"""Runs from recipe to manifest, in this process, on a tiny model."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from train.config import RunConfig
from train.errors import EXIT_CONFIG, EXIT_DATA, EXIT_TRAINING, EXIT_UNAVAILABLE, UserError
from train.loop.run import run


def go(recipe: dict[str, Any], **fields: Any) -> Any:
    return run(RunConfig.model_validate({**recipe, **fields}))


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_a_run_leaves_what_the_design_promises(recipe: dict[str, Any], tmp_path: Path, adapter: str) -> None:
    go(recipe, adapter=adapter, num_generations=2, eval_data=recipe["data"])
    out = tmp_path / "out"
    assert {path.name for path in out.iterdir()} == {"run.json", "metrics.jsonl", "adapter", "loss.png"}
    written = manifest(out)
    assert written["status"] == "finished"
    assert written["recipe"]["adapter"] == adapter
    assert written["inputs"]["model"]["model.safetensors"].startswith("sha256:")
    assert next(iter(written["inputs"]["data"].values())).startswith("sha256:")
    assert written["versions"]["torch"] == torch.__version__
    assert written["device"]["precision"]["value"] == "fp32"
    results = written["results"]
    assert results["num_steps"] == 4
    assert results["eval_loss_after"] < results["eval_loss_before"]
    assert [set(generation) for generation in results["generations"]] == [{"prompt", "wanted", "before", "after"}] * 2
    width, height = struct.unpack(">II", (out / "loss.png").read_bytes()[16:24])
    assert (width, height) == (840, 480)


@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_the_adapter_loads_with_plain_peft_and_equals_the_trained_model(
    recipe: dict[str, Any], tmp_path: Path, adapter: str
) -> None:
    outcome = go(recipe, adapter=adapter)
    ids = torch.arange(20, 60).unsqueeze(0)
    base = AutoModelForCausalLM.from_pretrained(recipe["model"], dtype=torch.float32)
    with torch.no_grad():
        plain = base(ids).logits
        loaded = PeftModel.from_pretrained(base, str(tmp_path / "out" / "adapter")).eval()
        assert torch.equal(loaded(ids).logits, outcome.model.eval()(ids).logits)
        assert (loaded(ids).logits - plain).abs().max() > 0.01


@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_the_same_recipe_gives_the_same_losses_to_the_last_digit(
    recipe: dict[str, Any], tmp_path: Path, adapter: str
) -> None:
    for name in ("first", "second"):
        go(recipe, adapter=adapter, output=tmp_path / name, lora={"lora_dropout": 0.1})
    assert losses(tmp_path / "first") == losses(tmp_path / "second")
    first, second = (
        (tmp_path / name / "adapter" / "adapter_model.safetensors").read_bytes() for name in ("first", "second")
    )
    assert first == second


def test_another_seed_gives_other_losses(recipe: dict[str, Any], tmp_path: Path) -> None:
    go(recipe, output=tmp_path / "first")
    go(recipe, output=tmp_path / "second", seed=43)
    assert losses(tmp_path / "first") != losses(tmp_path / "second")


def test_the_first_loss_of_a_random_model_is_near_ln_v_and_the_run_says_so(
    recipe: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    results = go(recipe).results
    assert abs(results["first_loss"] / math.log(512) - 1) <= 0.05
    assert "an untrained model starts here" in capsys.readouterr().out


def test_metrics_count_tokens_without_padding(recipe: dict[str, Any], tmp_path: Path) -> None:
    go(recipe, max_steps=None, num_train_epochs=1)
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    summary = manifest(tmp_path / "out")["data"][0]
    assert sum(line["num_tokens"] for line in lines) == summary["num_tokens"]
    assert sum(line["num_target_tokens"] for line in lines) == summary["num_target_tokens"]


def test_accumulated_batches_give_the_loss_of_one_large_batch(recipe: dict[str, Any], tmp_path: Path) -> None:
    go(recipe, output=tmp_path / "one", per_device_train_batch_size=4)
    go(recipe, output=tmp_path / "four", per_device_train_batch_size=1, gradient_accumulation_steps=4)
    assert losses(tmp_path / "one") == pytest.approx(losses(tmp_path / "four"), abs=1e-5)


def test_gradient_checkpointing_changes_no_loss_and_still_trains_every_tensor(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    for adapter in ("lora", "oft"):
        go(recipe, adapter=adapter, output=tmp_path / f"{adapter}-plain")
        results = go(recipe, adapter=adapter, output=tmp_path / f"{adapter}-less", gradient_checkpointing=True).results
        assert losses(tmp_path / f"{adapter}-plain") == pytest.approx(losses(tmp_path / f"{adapter}-less"), abs=1e-6)
        assert results["gradients"].split()[0] == results["gradients"].split()[2]


def test_bf16_trains_fp32_adapters(recipe: dict[str, Any]) -> None:
    for adapter in ("lora", "oft"):
        output = recipe["output"] / adapter
        outcome = go(recipe, adapter=adapter, precision="bf16", output=output)
        assert math.isfinite(outcome.results["last_loss"])
        assert {p.dtype for p in outcome.model.parameters() if p.requires_grad} == {torch.float32}


def test_inputs_are_never_written_to(recipe: dict[str, Any]) -> None:
    def state() -> list[tuple[str, int]]:
        folders = (recipe["model"], recipe["data"].parent)
        return [
            (str(path), path.stat().st_mtime_ns) for folder in folders for path in folder.iterdir() if path.is_file()
        ]

    before = state()
    go(recipe)
    assert state() == before


def test_an_output_folder_with_results_is_never_overwritten(recipe: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "kept.txt").write_text("x", encoding="utf-8")
    with pytest.raises(UserError, match="is not empty") as caught:
        go(recipe)
    assert caught.value.exit_code == EXIT_CONFIG
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["kept.txt"]


def test_a_learning_rate_that_diverges_stops_with_what_was_logged(recipe: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="loss is (nan|inf)|grad_norm is (nan|inf)") as caught:
        go(recipe, learning_rate=1e30, max_steps=8, max_grad_norm=1e30)
    assert caught.value.exit_code == EXIT_TRAINING
    written = manifest(tmp_path / "out")
    assert written["status"] == "failed"
    assert "nan" in written["reason"] or "inf" in written["reason"]
    assert (tmp_path / "out" / "metrics.jsonl").read_text(encoding="utf-8").count("\n") >= 1


def test_targets_outside_the_loss_stop_the_run_by_name(recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from train.adapters import attach

    original = attach.attach

    def with_a_dead_tensor(*arguments: Any) -> Any:
        adapted = original(*arguments)
        module = adapted.get_submodule("base_model.model.model.layers.1.mlp.down_proj")
        module.lora_A["default"].forward = lambda x: torch.zeros(*x.shape[:-1], 8)
        return adapted

    monkeypatch.setattr(attach, "attach", with_a_dead_tensor)
    with pytest.raises(UserError, match="layers.1.mlp.down_proj") as caught:
        go(recipe)
    assert caught.value.exit_code == EXIT_TRAINING


def test_bad_rows_stop_before_the_model_is_loaded(
    recipe: dict[str, Any], write_rows: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.loop import run as run_module

    monkeypatch.setattr(run_module, "load_model", lambda *_: pytest.fail("the model was loaded"))
    with pytest.raises(UserError) as caught:
        go(recipe, data=write_rows({"instruction": "a", "output": 1}))
    assert caught.value.exit_code == EXIT_DATA
    assert manifest(recipe["output"])["status"] == "failed"


def test_a_device_that_is_not_there_is_an_error_not_a_substitute(recipe: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="torch finds no npu device") as caught:
        go(recipe, device="npu")
    assert caught.value.exit_code == EXIT_UNAVAILABLE
