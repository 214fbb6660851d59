"""A run goes on with a trained adapter and its own settings, or says what was asked for otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from train.adapters import attach
from train.adapters.initial import check_init_adapter, initial_adapter
from train.config import RunConfig
from train.errors import EXIT_CONFIG, UserError
from train.loop.model import load_model
from train.loop.preflight import check_places
from train.loop.run import run

Adapters = Callable[..., Path]
KINDS = pytest.mark.parametrize("kind", ["lora", "oft"])


def config(recipe: dict[str, Any], folder: Path, **fields: Any) -> RunConfig:
    return RunConfig.model_validate({**recipe, "init_adapter": folder, **fields})


def refused(recipe: dict[str, Any], folder: Path, **fields: Any) -> str:
    with pytest.raises(UserError) as caught:
        check_init_adapter(config(recipe, folder, **fields))
    assert caught.value.exit_code == EXIT_CONFIG
    return caught.value.message


def test_without_init_adapter_there_is_nothing_to_check(recipe: dict[str, Any]) -> None:
    assert check_init_adapter(RunConfig.model_validate(recipe)) is None


def test_another_kind_is_refused(recipe: dict[str, Any], adapter_of: Adapters) -> None:
    message = refused(recipe, adapter_of("oft"), adapter="lora")
    assert message == f"adapter: lora was asked for, {adapter_of('oft')} holds oft"


def test_settings_that_were_asked_for_otherwise_are_all_named(
    recipe: dict[str, Any], adapter_of: Adapters
) -> None:
    fields = {"lora": {"r": 16, "lora_alpha": 16, "lora_dropout": 0.1}}
    lines = refused(recipe, adapter_of("lora"), **fields).splitlines()
    assert lines[0].startswith("lora.lora_dropout: 0.1 was asked for")
    assert lines[1].startswith("lora.r: 16 was asked for")
    assert lines[1].endswith("has 8")
    assert len(lines) == 2


@pytest.mark.parametrize(
    ("oft", "faults"),
    [
        ({"oft_block_size": 64}, ["oft.oft_block_size: 64 was asked for"]),
        ({"oft_num_blocks": 8}, ["oft.oft_num_blocks: 8 was asked for"]),
        ({"coft": True, "block_share": True}, ["oft.block_share: True", "oft.coft: True"]),
        ({"oft_block_size": "auto", "cayley": "exact", "coft": False}, []),
    ],
)
def test_ofts_settings_are_compared_with_those_that_peft_keeps(
    recipe: dict[str, Any], adapter_of: Adapters, oft: dict[str, Any], faults: list[str]
) -> None:
    if not faults:
        assert check_init_adapter(config(recipe, adapter_of("oft"), adapter="oft", oft=oft))
        return
    lines = refused(recipe, adapter_of("oft"), adapter="oft", oft=oft).splitlines()
    assert all(line.startswith(part) for line, part in zip(lines, faults, strict=True)), lines


def test_other_layers_than_the_adapters_are_refused(recipe: dict[str, Any], adapter_of: Adapters) -> None:
    settings = config(recipe, adapter_of("lora"), target_modules=["q_proj"])
    with pytest.raises(UserError, match="target_modules: 2 layers were asked for, .* has 14") as caught:
        initial_adapter(load_model(recipe["model"], torch.float32, "sdpa"), settings, "cpu")
    assert caught.value.exit_code == EXIT_CONFIG


def test_the_other_cayley_map_is_taken_by_converting_the_weights(
    recipe: dict[str, Any], adapter_of: Adapters, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = adapter_of("oft", oft={"cayley": "series"})
    model = AutoModelForCausalLM.from_pretrained(recipe["model"], dtype=torch.float32)
    asked = config(recipe, folder, adapter="oft", oft={"cayley": "exact"})
    adapted, _ = initial_adapter(model, asked, "cpu")
    assert "oft.cayley: exact was asked for, the adapter is of series" in capsys.readouterr().out
    stored = load_file(folder / "adapter_model.safetensors")
    converted = get_peft_model_state_dict(adapted)
    assert stored.keys() == converted.keys()
    assert all(torch.equal(converted[name], -tensor) for name, tensor in stored.items())
    assert adapted.peft_config["default"].use_cayley_neumann is False


def test_settings_that_nobody_asked_for_come_from_the_folder(
    recipe: dict[str, Any], adapter_of: Adapters
) -> None:
    folder = adapter_of("lora", lora={"r": 4}, target_modules=["q_proj", "up_proj"])
    settings = config(recipe, folder, oft={"oft_block_size": 64})
    adapted, targets = initial_adapter(load_model(recipe["model"], torch.float32, "sdpa"), settings, "cpu")
    assert {target.kind for target in targets} == {"q_proj", "up_proj"}
    assert adapted.peft_config["default"].r == 4
    table = attach.target_table(adapted, targets)
    assert sum(row.num_parameters for row in table) == sum(
        parameter.numel() for parameter in attach.trainable(adapted).values()
    )


def test_the_same_settings_may_be_repeated(recipe: dict[str, Any], adapter_of: Adapters) -> None:
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    fields = {"lora": {"r": 8, "lora_dropout": 0.0}, "target_modules": names}
    assert check_init_adapter(config(recipe, adapter_of("lora"), **fields))


def test_an_adapter_of_the_head_is_not_trained_on(recipe: dict[str, Any], tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    model = load_model(recipe["model"], torch.float32, "sdpa")
    get_peft_model(model, LoraConfig(target_modules=["lm_head", "q_proj"])).save_pretrained(str(tmp_path))
    fresh = load_model(recipe["model"], torch.float32, "sdpa")
    with pytest.raises(UserError, match="does not train: lm_head"):
        initial_adapter(fresh, config(recipe, tmp_path), "cpu")


@KINDS
def test_a_run_goes_on_where_the_adapter_was(
    recipe: dict[str, Any],
    few_rows: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    kind: str,
) -> None:
    fields = {"adapter": kind, "data": few_rows, "eval_data": few_rows, "max_steps": 3}
    first = run(RunConfig.model_validate({**recipe, **fields})).results
    capsys.readouterr()
    second = run(config(recipe, recipe["output"] / "adapter", **fields, output=tmp_path / "second")).results
    assert "note: " not in capsys.readouterr().out
    assert second["eval_loss_before"] == pytest.approx(first["eval_loss_after"], abs=1e-5)
    assert second["eval_loss_after"] < second["eval_loss_before"]
    trained, _, total = second["gradients"].split()[:3]
    assert trained == total
    assert second["num_trainable_parameters"] == first["num_trainable_parameters"]


def test_preflight_names_a_wrong_folder_with_all_others(recipe: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        check_places(config({**recipe, "data": tmp_path / "none"}, tmp_path / "adapter"))
    assert len(caught.value.message.splitlines()) == 2
    assert f"{tmp_path / 'adapter'}: does not exist" in caught.value.message
