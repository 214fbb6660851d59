"""Runs from recipe to manifest, in this process, on a tiny model."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from importlib.metadata import version
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
    return [
        json.loads(line)["loss"]
        for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_a_run_leaves_what_the_design_promises(recipe: dict[str, Any], tmp_path: Path, adapter: str) -> None:
    go(recipe, adapter=adapter, num_generations=2, eval_data=recipe["data"])
    out = tmp_path / "out"
    made = {path.name for path in out.iterdir()}
    assert made == {"run.json", "metrics.jsonl", "checkpoints", "adapter", "loss.png"}
    written = manifest(out)
    assert written["status"] == "finished"
    assert written["recipe"]["adapter"] == adapter
    assert written["inputs"]["model"]["model.safetensors"].startswith("sha256:")
    assert next(iter(written["inputs"]["data"].values())).startswith("sha256:")
    assert written["versions"]["torch"] == version("torch")
    assert written["device"]["precision"]["value"] == "fp32"
    results = written["results"]
    assert results["num_steps"] == 4
    assert results["eval_loss_after"] < results["eval_loss_before"]
    assert [set(generation) for generation in results["generations"]] == [
        {"prompt", "wanted", "before", "after"}
    ] * 2
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
        # PEFT adds and multiplies in another order.
        assert torch.allclose(loaded(ids).logits, outcome.model.eval()(ids).logits, rtol=0, atol=1e-5)
        assert (loaded(ids).logits - plain).abs().max() > 0.01


@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_the_same_recipe_gives_the_same_losses_to_the_last_digit(
    recipe: dict[str, Any], tmp_path: Path, adapter: str
) -> None:
    for name in ("first", "second"):
        go(recipe, adapter=adapter, output=tmp_path / name, lora={"lora_dropout": 0.1})
    assert losses(tmp_path / "first") == losses(tmp_path / "second")
    first, second = (
        (tmp_path / name / "adapter" / "adapter_model.safetensors").read_bytes()
        for name in ("first", "second")
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
    lines = [
        json.loads(line)
        for line in (tmp_path / "out" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
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
        results = go(
            recipe, adapter=adapter, output=tmp_path / f"{adapter}-less", gradient_checkpointing=True
        ).results
        assert losses(tmp_path / f"{adapter}-plain") == pytest.approx(
            losses(tmp_path / f"{adapter}-less"), abs=1e-6
        )
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
            (str(path), path.stat().st_mtime_ns)
            for folder in folders
            for path in folder.iterdir()
            if path.is_file()
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


def test_a_learning_rate_that_diverges_stops_with_what_was_logged(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="loss is (nan|inf)|grad_norm is (nan|inf)") as caught:
        go(recipe, learning_rate=1e30, max_steps=8, max_grad_norm=1e30)
    assert caught.value.exit_code == EXIT_TRAINING
    written = manifest(tmp_path / "out")
    assert written["status"] == "failed"
    assert "nan" in written["reason"] or "inf" in written["reason"]
    assert (tmp_path / "out" / "metrics.jsonl").read_text(encoding="utf-8").count("\n") >= 1


def test_targets_outside_the_loss_stop_the_run_by_name(
    recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.adapters import attach

    original = attach.attach

    def with_a_dead_tensor(*arguments: Any) -> Any:
        adapted = original(*arguments)
        module = adapted.get_submodule("base_model.model.model.layers.1.mlp.down_proj")
        module.lora_A["default"].weight.register_hook(torch.zeros_like)
        return adapted

    monkeypatch.setattr(attach, "attach", with_a_dead_tensor)
    with pytest.raises(UserError, match="layers.1.mlp.down_proj") as caught:
        go(recipe)
    assert caught.value.exit_code == EXIT_TRAINING


def test_bad_rows_stop_before_the_model_is_loaded(
    recipe: dict[str, Any], write_rows: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.loop import prepare

    monkeypatch.setattr(prepare, "load_model", lambda *_: pytest.fail("the model was loaded"))
    with pytest.raises(UserError) as caught:
        go(recipe, data=write_rows({"instruction": "a", "output": 1}))
    assert caught.value.exit_code == EXIT_DATA
    assert manifest(recipe["output"])["status"] == "failed"


def test_a_device_that_is_not_there_is_an_error_not_a_substitute(recipe: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="torch finds no npu device") as caught:
        go(recipe, device="npu")
    assert caught.value.exit_code == EXIT_UNAVAILABLE


@pytest.mark.parametrize("warmup_steps", [1, 2])
def test_a_warmup_from_zero_is_no_missing_gradient(recipe: dict[str, Any], warmup_steps: int) -> None:
    """LoRA's B does not move while the learning rate is zero, so A's first gradient comes later."""
    results = go(recipe, warmup_steps=warmup_steps).results
    assert results["gradients"].startswith("28 of 28")


@pytest.mark.parametrize("name", ["cards", "lora", "oft", "tiny"])
def test_every_shipped_recipe_trains(recipe: dict[str, Any], name: str) -> None:
    from train.recipe import build_config

    adapter = "oft" if name == "oft" else "lora"
    flags = {key: recipe[key] for key in ("model", "data", "output")} | {"adapter": adapter}
    results = run(build_config(Path(name), flags, ["max_steps=4", "num_generations=0"])).results
    assert results["last_loss"] < results["first_loss"] + 0.5
    assert results["num_steps"] == 4


def test_every_step_counts_whatever_logging_steps_says(recipe: dict[str, Any], tmp_path: Path) -> None:
    results = go(recipe, max_steps=7, logging_steps=5).results
    assert results["num_steps"] == 7
    lines = [
        json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text("utf-8").splitlines()
    ]
    assert [line["step"] for line in lines] == [1, 5, 7]


def test_the_evaluation_loss_does_not_depend_on_the_batch_size(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    found = [
        go(recipe, eval_data=recipe["data"], per_device_train_batch_size=size, output=tmp_path / str(size))
        for size in (1, 3, 16)
    ]
    assert [run.results["eval_loss_before"] for run in found] == pytest.approx(
        [found[0].results["eval_loss_before"]] * 3, abs=1e-5
    )


def test_the_data_hash_is_of_what_was_read(recipe: dict[str, Any], tmp_path: Path) -> None:
    import hashlib

    go(recipe)
    wanted = "sha256:" + hashlib.sha256(recipe["data"].read_bytes()).hexdigest()
    assert manifest(tmp_path / "out")["inputs"]["data"] == {str(recipe["data"]): wanted}


def test_tokens_beyond_the_models_rows_are_refused(recipe: dict[str, Any], tmp_path: Path) -> None:
    import shutil

    from transformers import Qwen2Config, Qwen2ForCausalLM

    model = Path(shutil.copytree(recipe["model"], tmp_path / "model"))
    config = Qwen2Config.from_pretrained(model, vocab_size=100)
    Qwen2ForCausalLM(config).save_pretrained(model)
    with pytest.raises(UserError, match="its weights have 100 rows") as caught:
        go(recipe, model=model)
    assert caught.value.exit_code == EXIT_CONFIG


@pytest.mark.parametrize("content", ["{", '{"eos_token_id": "x"}'])
def test_a_damaged_generation_config_is_an_error(
    recipe: dict[str, Any], tmp_path: Path, content: str
) -> None:
    import shutil

    model = Path(shutil.copytree(recipe["model"], tmp_path / "model"))
    (model / "generation_config.json").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match="generation_config.json"):
        go(recipe, model=model)


def test_a_mended_command_may_take_the_place_of_one_that_failed_before_training(
    recipe: dict[str, Any],
) -> None:
    with pytest.raises(UserError):
        go(recipe, target_modules=["none"])
    assert go(recipe).results["num_steps"] == 4


def test_a_folder_name_with_a_dollar_sign_costs_no_run(recipe: dict[str, Any], tmp_path: Path) -> None:
    import shutil

    model = Path(shutil.copytree(recipe["model"], tmp_path / "a$\\frac{$"))
    go(recipe, model=model, max_steps=2)
