"""The checks that train: each passes on sound adapters and fails on the fault that it is there for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from train.checks import training
from train.checks.report import CheckFailed


@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_training_fails_where_the_loss_does_not_fall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adapter: str
) -> None:
    from train.loop import trainer

    original = trainer.RunTrainer.compute_loss

    def climbing(self: Any, *arguments: Any, **named: Any) -> torch.Tensor:
        loss = original(self, *arguments, **named)
        return 2 * loss.detach() - loss  # the same value, the opposite gradient

    monkeypatch.setattr(trainer.RunTrainer, "compute_loss", climbing)
    with pytest.raises(CheckFailed, match="the loss did not fall"):
        training.trains(training.Bench(tmp_path), adapter)


@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_training_fails_where_the_saved_adapter_is_not_the_trained_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adapter: str
) -> None:
    from train.loop import run as run_module

    original = run_module.save_adapter

    def save_halved(prepared: Any, folder: Path) -> None:
        original(prepared, folder)
        path = folder / "adapter_model.safetensors"
        save_file(
            {name: tensor / 2 for name, tensor in load_file(path).items()}, path, metadata={"format": "pt"}
        )

    monkeypatch.setattr(run_module, "save_adapter", save_halved)
    with pytest.raises(CheckFailed, match="trained and saved: logits differ"):
        training.trains(training.Bench(tmp_path), adapter)


@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_reloading_passes_and_fails_where_the_adapter_does_nothing(
    bench: Any, tmp_path: Path, adapter: str
) -> None:
    assert "merged and reloaded" in training.reloads_and_merges(bench, adapter)
    import shutil

    other = training.Bench(Path(shutil.copytree(bench.folder, tmp_path / "copy")))
    path = other.adapter(adapter) / "adapter_model.safetensors"
    save_file(
        {name: torch.zeros_like(tensor) for name, tensor in load_file(path).items()},
        path,
        metadata={"format": "pt"},
    )
    with pytest.raises(CheckFailed, match="does nothing"):
        training.reloads_and_merges(other, adapter)


@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_reloading_fails_where_merging_is_wrong(
    bench: Any, monkeypatch: pytest.MonkeyPatch, adapter: str
) -> None:
    from peft.tuners.tuners_utils import BaseTuner

    original = BaseTuner.merge_and_unload

    def wrong(self: Any, *arguments: Any, **named: Any) -> Any:
        merged = original(self, *arguments, **named)
        merged.model.layers[0].mlp.down_proj.weight.data.mul_(1.1)
        return merged

    monkeypatch.setattr(BaseTuner, "merge_and_unload", wrong)
    with pytest.raises(CheckFailed, match="merged, saved and loaded: logits differ"):
        training.reloads_and_merges(bench, adapter)


def test_reloading_fails_by_word_where_training_made_no_adapter(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match="there is no adapter"):
        training.reloads_and_merges(training.Bench(tmp_path), "lora")


def test_rotations_pass_and_fail_where_they_are_not_orthogonal(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.adapters import cayley

    assert "R R^T" in training.rotations_are_orthogonal(bench)
    original = cayley.exact
    monkeypatch.setattr(cayley, "exact", lambda skew: 1.01 * original(skew))
    with pytest.raises(CheckFailed, match=r"R R\^T"):
        training.rotations_are_orthogonal(bench)


def test_packing_passes_and_fails_where_attention_leaks(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "equal their own" in training.packing_keeps_samples_apart(bench)
    original = training.Bench.base

    def leaking(self: Any) -> Any:
        model = original(self)
        forward = model.forward

        def with_ones_mask(input_ids: torch.Tensor, **named: Any) -> Any:
            return forward(input_ids=input_ids, attention_mask=torch.ones_like(input_ids), **named)

        model.forward = with_ones_mask
        return model

    monkeypatch.setattr(training.Bench, "base", leaking)
    with pytest.raises(CheckFailed, match="attention leaks"):
        training.packing_keeps_samples_apart(bench)
