"""A run that goes on does so exactly, and says what it does without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.loop.conftest import cut_back, exact, go, read, reseal, rewrite
from train.errors import UserError


@pytest.fixture
def long(recipe: dict[str, Any], without_drawing: None) -> dict[str, Any]:
    """Seven rows: two steps of three batches and one of one batch in an epoch."""
    lines = recipe["data"].read_text("utf-8").split("\n")[:7]
    recipe["data"].write_text("\n".join(lines), encoding="utf-8")
    return recipe | {
        "max_steps": 7,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 3,
        "logging_steps": 3,
        "num_generations": 1,
        "max_new_tokens": 4,
        "lora": {"lora_dropout": 0.1},
        "save_total_limit": 100,
    }


@pytest.mark.parametrize(("adapter", "steps"), [("lora", [2, 5, 7]), ("oft", [3])])
def test_a_resumed_run_equals_an_uninterrupted_one_to_the_last_digit(
    long: dict[str, Any], tmp_path: Path, adapter: str, steps: list[int]
) -> None:
    """Inside an epoch, at its border, inside the next one, and with no step left; lines of metrics span
    the place.
    """
    fields = {**long, "adapter": adapter, "eval_data": long["data"]}
    go(fields, output=tmp_path / "whole", save_steps=1)
    whole = exact(tmp_path / "whole")
    evaluated = [line["step"] for line in whole["metrics"] if "eval_loss" in line]
    assert [line["step"] for line in whole["metrics"] if "loss" in line] == [1, 3, 6, 7]
    assert evaluated == [3, 6, 7]
    for step in steps:
        folder = cut_back(tmp_path / "whole", tmp_path / f"from-{step}", step)
        go(fields, output=folder)
        assert exact(folder) == whole, f"from step {step}"
        assert read(folder / "run.json")["resumed"][0]["step"] == step


def test_a_run_may_be_resumed_again_and_again(recipe: dict[str, Any], tmp_path: Path, whole: Path) -> None:
    for number, step in enumerate((2, 4)):
        source = tmp_path / f"{number - 1}" if number else whole
        folder = cut_back(source, tmp_path / f"{number}", step)
        go(recipe, output=folder)
    assert [entry["step"] for entry in read(tmp_path / "1" / "run.json")["resumed"]] == [2, 4]
    assert exact(tmp_path / "1") == exact(whole)


def test_without_its_random_states_dropout_draws_other_numbers(long: dict[str, Any], tmp_path: Path) -> None:
    """So what the exact test compares does depend on them."""
    fields = {**long, "max_steps": 4, "logging_steps": 1}
    go(fields, output=tmp_path / "whole", save_steps=2)
    folder = cut_back(tmp_path / "whole", long["output"], 2)
    (folder / "checkpoints" / "step-2" / "rng_state.pt").unlink()
    go(fields, resume="weights-only")
    whole, resumed = exact(tmp_path / "whole")["metrics"], exact(folder)["metrics"]
    assert [line["loss"] for line in whole[:2]] == [line["loss"] for line in resumed[:2]]
    assert whole[2]["loss"] != resumed[2]["loss"]


def test_a_resumed_run_keeps_the_answers_and_the_clock_of_the_first_start(
    recipe: dict[str, Any], unfinished: Path, whole: Path
) -> None:
    """With the files of a run that had answered one prompt before its first step."""
    rewrite(unfinished / "run.json", recipe=read(unfinished / "run.json")["recipe"] | {"num_generations": 1})
    path = unfinished / "checkpoints" / "step-2"
    times = {"run_seconds": 1e6, "train_seconds": 1e5}
    content = (
        read(path / "checkpoint.json")
        | times
        | {"before": {"answers": ["kept"], "eval_losses": {"eval": 7.5}}}
    )
    rewrite(path / "checkpoint.json", **content)
    reseal(path, "checkpoint.json", (path / "checkpoint.json").read_text("utf-8"))
    results = go(recipe, num_generations=1).results
    assert results["generations"][0]["before"] == "kept"
    assert results["generations"][0]["after"] != "kept"
    assert results["seconds"] > 1e6
    assert 1e5 < results["train_seconds"] < 1e6
    assert read(unfinished / "run.json")["started"] == read(whole / "run.json")["started"]


@pytest.mark.parametrize("status", ["running", "failed"])
def test_an_unfinished_run_goes_on_and_says_from_where(
    recipe: dict[str, Any], unfinished: Path, status: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(unfinished / "run.json", status=status, reason="before")
    go(recipe)
    said = capsys.readouterr().out
    assert f"resume: goes on after step 2, from {unfinished}/checkpoints/step-2" in said
    assert "step 2/4" not in said
    assert "step 3/4" in said
    assert read(unfinished / "run.json")["status"] == "finished"
    assert "reason" not in read(unfinished / "run.json")


def test_a_layer_that_lost_its_gradient_is_found_after_a_resume_too(
    recipe: dict[str, Any], unfinished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.loop import resume

    original = resume.restore_adapter

    def with_a_dead_tensor(model: Any, *rest: Any) -> None:
        original(model, *rest)
        module = model.get_submodule("base_model.model.model.layers.1.mlp.down_proj")
        module.lora_A["default"].weight.register_hook(torch.zeros_like)

    monkeypatch.setattr(resume, "restore_adapter", with_a_dead_tensor)
    with pytest.raises(UserError, match="layers.1.mlp.down_proj"):
        go(recipe)


@pytest.mark.parametrize("names", [["optimizer.pt"], ["rng_state.pt", "scheduler.pt"]])
def test_weights_only_goes_on_without_state_files_and_names_them(
    recipe: dict[str, Any],
    unfinished: Path,
    whole: Path,
    names: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in names:
        (unfinished / "checkpoints" / "step-2" / name).unlink()
    with pytest.raises(UserError, match=f"{names[-1]} is missing") as caught:
        go(recipe)
    assert "--set resume=weights-only" in caught.value.hint
    go(recipe, resume="weights-only")
    said = capsys.readouterr().out
    assert all(f"resume: {name} is missing or damaged" in said for name in names)
    rates = [[line["learning_rate"] for line in exact(folder)["metrics"]] for folder in (whole, unfinished)]
    assert rates[0] == rates[1]
    is_exact = exact(unfinished)["weights"] == exact(whole)["weights"]
    assert is_exact == ("optimizer.pt" not in names)  # without dropout nothing is drawn


def test_half_a_line_of_metrics_after_the_checkpoint_is_cut(
    recipe: dict[str, Any], unfinished: Path, whole: Path
) -> None:
    path = unfinished / "metrics.jsonl"
    lines = path.read_text("utf-8").splitlines(keepends=True)
    path.write_text("".join(lines[:2]) + lines[2][:30], encoding="utf-8")
    go(recipe)
    assert exact(unfinished) == exact(whole)


def test_a_trainer_that_asks_for_no_state_is_found_before_it_trains(
    recipe: dict[str, Any], unfinished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import Trainer

    original = Trainer.train
    monkeypatch.setattr(Trainer, "train", lambda self, **_: original(self))
    with pytest.raises(UserError, match="did not ask for .*random states of the checkpoint"):
        go(recipe)


def test_random_states_come_back_from_a_file_that_holds_no_objects_of_numpy(tmp_path: Path) -> None:
    import random

    import numpy

    from train.loop.state import random_states, set_random_states

    def draw() -> list[float]:
        return [random.gauss(0, 1), float(numpy.random.normal()), float(torch.rand(1))]

    draw()
    torch.save(random_states("cpu"), tmp_path / "states.pt")
    wanted = draw()
    draw()
    set_random_states(torch.load(tmp_path / "states.pt", weights_only=True), "cpu")
    assert draw() == wanted
