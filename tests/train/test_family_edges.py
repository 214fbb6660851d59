"""The edge of the families' table: routers, names that PEFT takes for others, unknown types, whole models,
and the table as `train info` prints it.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_families import (
    EXACT,
    FAMILIES,
    SETTINGS,
    SMALL,
    VERSION,
    config_for,
    is_claimed,
    targets_of,
    tiny_model,
    write_checkpoint,
)  # fmt: skip

from train import families
from train.adapters import attach
from train.config import RunConfig
from train.errors import UserError
from train.loop.health import GradientCheck
from train.loop.model import load_model, read_model_config
from train.loop.run import run

Command = Callable[..., "subprocess.CompletedProcess[str]"]
each_adapter = pytest.mark.parametrize("adapter", ["lora", "oft"])


def test_unknown_types_and_whole_models_never_pack() -> None:
    assert not families.may_pack({"model_type": "llama"})
    assert not families.may_pack({"model_type": "qwen3_5", "text_config": {"model_type": "qwen3_5_text"}})


@pytest.mark.parametrize("name", ["gate", "shared_expert_gate"])
def test_a_router_is_never_adapted(model_of: Any, name: str) -> None:
    with pytest.raises(UserError, match=f"{name} is a router of experts, and is never adapted"):
        attach.find_targets(model_of("qwen2_moe"), config_for("oft", [name]))
    names = {
        last
        for part in attach.find_targets(model_of("qwen2_moe"), config_for("oft", ["*"]))
        for last in part.modules
    }
    assert not any(one.endswith("gate") for one in names)


def test_names_that_peft_takes_for_experts_are_refused_by_name(model_of: Any) -> None:
    model = model_of("qwen3_moe")
    if not is_claimed(FAMILIES["qwen3_moe"].lora_leaves_mlp):
        pytest.skip(f"the PEFT of transformers {VERSION} maps no names")
    config = config_for("lora", ["q_proj", "up_proj"])
    with pytest.raises(UserError, match="target_modules: up_proj: PEFT takes these names for experts"):
        attach.attach(model, config, attach.find_targets(model, config))


def test_an_expert_that_no_token_was_sent_to_is_not_dead() -> None:
    names = [
        "model.layers.0.mlp.experts.3.up_proj.lora_A.default.weight",
        "model.layers.0.mlp.up_proj.lora_A.default.weight",
    ]
    check = GradientCheck({name: torch.nn.Parameter(torch.ones(2)) for name in names})
    check.look()
    found = check.finding(2)
    assert found is not None and found.level == "stop"
    assert names[1] in found.seen and names[0] not in found.seen
    check.without.discard(names[1])
    assert check.finding(2) is None
    assert check.line() == "1 of 2 adapter tensors got a gradient"


@each_adapter
def test_an_unknown_type_is_told_so_and_runs_on_the_safe_path(
    tiny: Path, recipe: dict[str, Any], tmp_path: Path, without_drawing: None, capsys: Any, adapter: str
) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    folder = write_checkpoint(tiny, tmp_path / "llama", LlamaForCausalLM(LlamaConfig(**SMALL)))
    fields = {"model": folder, "adapter": adapter, adapter: SETTINGS[adapter]}
    outcome = run(RunConfig.model_validate({**recipe, **fields}))
    assert "note: model type llama is not one that isotune tests (qwen2, qwen3," in capsys.readouterr().out
    assert not any(type(module).__name__ == "BatchedLinear" for module in outcome.model.modules())
    assert outcome.results["last_loss"] < outcome.results["first_loss"]
    assert outcome.results["gradients"].startswith("28 of 28 " if adapter == "lora" else "14 of 14 ")


def test_of_a_whole_checkpoint_the_text_part_is_loaded_and_said(model_of: Any, tmp_path: Path) -> None:
    text = model_of("qwen3_5_text")
    import transformers

    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_heads": 2,
        "out_hidden_size": 64,
        "patch_size": 4,
    }
    whole_config = transformers.Qwen3_5Config(text_config=text.config.to_dict(), vision_config=vision)
    whole = transformers.Qwen3_5ForConditionalGeneration(whole_config)
    whole.model.language_model.load_state_dict(text.model.state_dict())
    whole.lm_head.load_state_dict(text.lm_head.state_dict())
    whole.save_pretrained(tmp_path)
    whole.to(torch.bfloat16).save_pretrained(tmp_path / "half")
    assert families.of_text(read_model_config(tmp_path / "half"))["dtype"] == "bfloat16"
    content = read_model_config(tmp_path)
    assert content["model_type"] == "qwen3_5"
    assert any("the text part alone is loaded and trained" in note for note in families.notes(content))
    loaded = load_model(tmp_path, torch.float32, "sdpa").eval()
    ids = torch.arange(3, 15)[None]
    with torch.no_grad():
        assert (loaded(input_ids=ids).logits - text.eval()(input_ids=ids).logits).abs().max() <= EXACT
    assert targets_of(loaded, "oft") == targets_of(text, "oft")


def test_a_family_that_this_transformers_does_not_have_is_said_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_5"}), encoding="utf-8")
    monkeypatch.setattr(families, "transformers_version", lambda: "4.57.6")
    with pytest.raises(UserError, match=r"qwen3_5: transformers 4.57.6 does not have it, 5.14.1 does"):
        read_model_config(tmp_path)


def test_a_torch_without_an_operator_of_the_family_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On torch 2.7 by its own scatter, elsewhere by one that answers like it."""
    try:
        tiny_model("qwen4_exp_text").save_pretrained(tmp_path)
    except ValueError:
        pytest.skip(f"transformers {VERSION} has no qwen4_exp_text")

    def scatter(*_: Any) -> None:
        raise RuntimeError("scatter(): Expected dtype int64 for index")

    monkeypatch.setattr(torch.Tensor, "scatter", scatter)
    with pytest.raises(UserError, match=r"32-bit indices.*Expected dtype int64") as caught:
        load_model(tmp_path, torch.float32, "sdpa")
    assert caught.value.exit_code == 78
    assert "newer torch" in caught.value.hint


@pytest.mark.parametrize("model_type", families.REFUSED)
def test_a_model_without_a_text_part_is_refused_with_the_list(tmp_path: Path, model_type: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}), encoding="utf-8")
    with pytest.raises(UserError, match="has no text model of its own") as caught:
        read_model_config(tmp_path)
    assert "train info --families" in caught.value.hint


def test_a_transformers_of_no_row_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not families.notes({"model_type": "qwen2"}) or VERSION not in families.TESTED_SETS
    monkeypatch.setattr(families, "transformers_version", lambda: "5.99.0")
    (note,) = families.notes({"model_type": "qwen3_moe"})
    assert "tested with transformers 4.57.6, 5.14.1, 5.20.2; this is 5.99.0" in note
    assert families.may_pack({"model_type": "qwen3_moe"}) and not families.may_pack(
        {"model_type": "qwen3_next"}
    )


@pytest.mark.parametrize("model_type", ["qwen2", "qwen3"])
def test_a_family_with_tied_embeddings_learns_from_ln_v_on(
    tiny: Path, recipe: dict[str, Any], tmp_path: Path, without_drawing: None, model_type: str
) -> None:
    model = write_checkpoint(tiny, tmp_path / "model", tiny_model(model_type, tie_word_embeddings=True))
    fields = {"model": model, "adapter": "oft", "oft": {"oft_block_size": 16}}
    results = run(RunConfig.model_validate({**recipe, **fields})).results
    assert abs(results["first_loss"] / math.log(512) - 1) <= 0.05
    assert results["last_loss"] < results["first_loss"]


def test_info_prints_the_table_and_loads_no_library(train_command: Command) -> None:
    done = train_command("info", "--families")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for family in families.FAMILIES:
        (line,) = (line for line in lines if line.startswith(f"{family.name}  "))
        assert all(version in line for version in family.tested_with) and family.parts in line
    assert f"Here: transformers {VERSION}, peft {metadata.version('peft')}." in lines
    as_json = json.loads(train_command("info", "--families", "--json").stdout)
    assert [row["family"] for row in as_json["families"]] == [family.name for family in families.FAMILIES]
