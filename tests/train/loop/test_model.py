"""Checkpoint folders: what is wrong with one is named, and nothing is filled in silently."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from train.errors import EXIT_CONFIG, UserError
from train.loop.model import hash_folder, load_model, load_tokenizer, read_model_config


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "model"))


def test_a_weight_that_is_missing_is_an_error_not_a_random_number(copy: Path) -> None:
    weights = load_file(copy / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"missing keys.*layers.1.mlp.up_proj.weight") as caught:
        load_model(copy, torch.float32, "sdpa")
    assert caught.value.exit_code == EXIT_CONFIG


def test_a_weight_of_another_shape_is_an_error(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    (copy / "config.json").write_text(json.dumps({**config, "intermediate_size": 300}), encoding="utf-8")
    with pytest.raises(UserError, match=r"--model .*model"):
        load_model(copy, torch.float32, "sdpa")


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_truncated_file_is_an_error_with_the_librarys_reason(copy: Path, name: str) -> None:
    path = copy / name
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(UserError, match="does not load|do not load") as caught:
        load_tokenizer(copy)
        load_model(copy, torch.float32, "sdpa")
    assert caught.value.exit_code == EXIT_CONFIG


def test_a_folder_that_is_no_checkpoint_says_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x", encoding="utf-8")
    with pytest.raises(UserError, match="config.json: cannot be read") as caught:
        read_model_config(tmp_path)
    assert "notes.txt" in caught.value.hint
    with pytest.raises(UserError, match="is no folder"):
        read_model_config(tmp_path / "none")


@pytest.mark.parametrize("content", ["{", "{}"])
def test_a_config_that_says_nothing_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=r"config.json"):
        read_model_config(tmp_path)


def test_the_hash_of_a_folder_sees_one_changed_byte(copy: Path) -> None:
    before = hash_folder(copy)
    content = bytearray((copy / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (copy / "model.safetensors").write_bytes(content)
    after = hash_folder(copy)
    assert {name for name in before if before[name] != after[name]} == {"model.safetensors"}


def test_a_missing_tokenizer_is_an_error_not_an_empty_one(copy: Path) -> None:
    (copy / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="has no tokenizer.json"):
        load_tokenizer(copy)


def test_a_tokenizer_that_loses_text_is_refused(copy: Path) -> None:
    content = json.loads((copy / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    del vocabulary["h"]
    content["model"]["merges"] = []
    (copy / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UserError, match="the tokenizer loses text"):
        load_tokenizer(copy)


def test_weights_that_the_config_has_no_place_for_are_an_error(copy: Path) -> None:
    config = json.loads((copy / "config.json").read_text(encoding="utf-8"))
    config |= {"num_hidden_layers": 1, "layer_types": config.get("layer_types", ["full_attention"])[:1]}
    (copy / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UserError, match="unexpected keys in the weights: model.layers.1"):
        load_model(copy, torch.float32, "sdpa")


@pytest.mark.parametrize("content", ["5", '"model_type"', "[]"])
def test_a_config_that_is_no_object_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match="has no model_type"):
        read_model_config(tmp_path)
