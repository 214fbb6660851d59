"""The families that `train` takes: every claim of the table in train/families.py is shown here, with the
libraries that are installed; and one checkpoint of real shape.
"""

from __future__ import annotations

import copy
import io
import json
import math
import os
import re
import subprocess
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import get_peft_model
from tiny_families import (
    EXACT,
    FAMILIES,
    SETTINGS,
    VERSION,
    config_for,
    fill,
    is_claimed,
    loss_of,
    targets_of,
    trained,
    write_checkpoint,
)  # fmt: skip

from train import families
from train.adapters import attach
from train.adapters.reach import left_out
from train.config import RunConfig
from train.loop.model import load_model, read_model_config
from train.loop.run import run
from train.results.merge import MergeOptions, merge

Command = Callable[..., "subprocess.CompletedProcess[str]"]
QWEN3 = "ISOTUNE_TEST_QWEN3"


OTHER_LAYERS = {"index_qk_proj", "key_proj", "value_proj", "block_inject_weight"}
OTHER_LAYERS |= {"input_mix_weight_down", "input_mix_weight_up"}
"""Of Qwen4-Exp: the choice of tokens to attend to, n-gram embeddings, the mixing of residual streams."""


def linear_in(model: Any) -> dict[str, Any]:
    return {name: module for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}


each_family = pytest.mark.parametrize("model_type", FAMILIES)
each_adapter = pytest.mark.parametrize("adapter", ["lora", "oft"])


def test_the_table_has_every_qwen_of_the_installed_transformers() -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL

    known = {name for family in families.FAMILIES for name in family.model_types}
    assert {name for name in CAUSAL if "qwen" in name} == known & CAUSAL.keys()
    assert {
        name for family in families.FAMILIES if is_claimed(family.tested_with) for name in family.model_types
    } <= CAUSAL.keys()
    whole = {
        name
        for name in CONFIG_MAPPING_NAMES
        if re.fullmatch(r"qwen[0-9_.]*(vl|omni|audio|asr)?(_moe)?", name)
    }
    assert whole - known == set(families.REFUSED) & CONFIG_MAPPING_NAMES.keys()


def test_the_sets_of_libraries_are_named_as_they_are() -> None:
    if VERSION not in families.TESTED_SETS:
        pytest.skip(f"transformers {VERSION} is in no row of the table")
    assert families.TESTED_SETS[VERSION] == metadata.version("peft")


@each_adapter
@each_family
def test_auto_is_what_the_table_says(model_of: Any, model_type: str, adapter: str) -> None:
    family, model = FAMILIES[model_type], model_of(model_type)
    names = targets_of(model, adapter)
    kinds = {name.rsplit(".", 1)[-1] for name in names}
    leaves = adapter == "lora" and is_claimed(family.lora_leaves_mlp)
    assert kinds == set(family.adapts) - (set(families.MLP) if leaves else set())
    assert names == {name for name in linear_in(model) if name.rsplit(".", 1)[-1] in kinds}
    rest = {name.rsplit(".", 1)[-1] for name in linear_in(model)} - set(family.adapts)
    assert rest <= {"lm_head", *families.ROUTERS} | (
        OTHER_LAYERS if model_type == "qwen4_exp_text" else set()
    )
    if not leaves:
        parts = {
            "shared expert": ".shared_expert.",
            "linear attention": ".linear_attn.",
            "attention": ".self_attn.",
        }
        said = family.parts.split(", ")
        assert {part for part, mark in parts.items() if any(mark in name for name in names)} == set(said) - {
            "MLP"
        }
        assert ("MLP" in said) == any(re.search(r"mlp.(gate|up|down)_proj$", name) for name in names)
    adapted = attach.attach(model, config_for(adapter), attach.find_targets(model, config_for(adapter)))
    lines = left_out(adapted)
    assert any(line.startswith("experts: ") for line in lines) == is_claimed(family.fused_with)
    assert any(line.startswith("down_proj, gate_proj, up_proj: ") for line in lines) == leaves
    experts = [name for name in names if ".experts." in name]
    has_experts = any("experts" in name.split(".") for name, _ in model.named_parameters())
    assert bool(experts) == (has_experts and not is_claimed(family.fused_with))


@each_adapter
@each_family
def test_a_family_trains_is_saved_and_merges(
    checkpoint_of: Any,
    recipe: dict[str, Any],
    few_rows: Path,
    tmp_path: Path,
    without_drawing: None,
    model_type: str,
    adapter: str,
) -> None:
    fields = {
        "model": checkpoint_of(model_type),
        "adapter": adapter,
        adapter: SETTINGS[adapter],
        "data": few_rows,
        "max_steps": 2,
        "per_device_train_batch_size": 2,
    }
    results = run(RunConfig.model_validate({**recipe, **fields})).results
    assert abs(results["first_loss"] / math.log(512) - 1) <= 0.05
    trained, _, total = results["gradients"].split()[:3]
    assert trained == total
    saved = recipe["output"] / "adapter"
    options = MergeOptions(fields["model"], saved, tmp_path / "merged", device="cpu")
    checks = merge(options, io.StringIO())["checks"]
    assert checks["in_memory"] <= checks["allowed"] < checks["effect_on_logits"]
    assert checks["reloaded"] <= checks["allowed"]


@each_adapter
@each_family
def test_layers_that_are_computed_together_equal_pefts(model_of: Any, model_type: str, adapter: str) -> None:
    names = sorted(targets_of(model_of(model_type), adapter))
    settings = attach.adapter_module(adapter).peft_config(config_for(adapter), names)
    plain, ours = (get_peft_model(model_of(model_type), copy.deepcopy(settings)).train() for _ in range(2))
    attach.batched(ours)
    assert any(type(module).__name__ == "BatchedLinear" for module in ours.modules())
    for model in (plain, ours):
        fill(model, 0.05)
    for _ in range(2):
        losses = [loss_of(model) for model in (plain, ours)]
        assert abs(losses[0].item() - losses[1].item()) <= EXACT
        for model, loss in zip((plain, ours), losses, strict=True):
            model.zero_grad()
            loss.backward()
        for (name, one), other in zip(trained(plain).items(), trained(ours).values(), strict=True):
            # PEFT leaves an expert without tokens without a gradient; computed together it gets zeros.
            assert other.grad is not None and (one.grad is not None or families.may_lack_gradient(name))
            gradient = torch.zeros_like(one) if one.grad is None else one.grad
            assert (gradient - other.grad).abs().max() <= EXACT, name
        for model in (plain, ours):
            torch.optim.SGD(trained(model).values(), lr=0.1).step()


def packed_gap(model: Any, lengths: tuple[int, ...] = (9, 5, 12)) -> float:
    """The largest difference between logits of samples in one row, and of the same samples alone."""
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(3, 512, (1, length), generator=generator) for length in lengths]
    positions = torch.cat([torch.arange(length)[None] for length in lengths], 1)
    with torch.no_grad():
        alone = torch.cat([model(input_ids=row, use_cache=False).logits for row in rows], 1)
        packed = model(input_ids=torch.cat(rows, 1), position_ids=positions, use_cache=False).logits
    return (packed - alone).abs().max().item()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@each_family
def test_packing_is_what_the_table_says(checkpoint_of: Any, model_type: str, attention: str) -> None:
    folder = checkpoint_of(model_type)
    gap = packed_gap(load_model(folder, torch.float32, attention).eval())
    packs = is_claimed(FAMILIES[model_type].packs_with)
    assert gap <= EXACT if packs else gap > 1e-3
    assert families.may_pack(read_model_config(folder)) == packs


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_a_checkpoint_of_real_shape_with_the_real_qwen3_tokenizer_trains(
    train_command: Command, tmp_path: Path, adapter: str
) -> None:
    tokenizer = os.environ.get(QWEN3, "")
    if not tokenizer:
        pytest.skip(f"no real Qwen3 tokenizer: {QWEN3} names its folder (test.sh sets it)")
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from train.checks.tiny import samples_file

    config = Qwen2Config(
        vocab_size=151_936, hidden_size=896, intermediate_size=4864, num_hidden_layers=2,
        num_attention_heads=14, num_key_value_heads=2, tie_word_embeddings=True, eos_token_id=151_645,
    )  # fmt: skip
    torch.manual_seed(0)
    model = write_checkpoint(Path(tokenizer), tmp_path / "model", Qwen2ForCausalLM(config))
    done = train_command(
        "--adapter", adapter, "--model", model, "--data", samples_file(), "--output", tmp_path / "out",
        "--set", "max_steps=5", "--set", "per_device_train_batch_size=2", "--set", "num_generations=1",
        "--set", "max_new_tokens=4",
        OMP_NUM_THREADS="2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "out" / "run.json").read_text(encoding="utf-8"))["results"]
    assert results["num_steps"] == 5
    assert abs(results["first_loss"] / math.log(151_936) - 1) <= 0.05
    assert "ln V = 11.931: an untrained model starts here" in done.stdout
    lines = (tmp_path / "out" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    assert all(math.isfinite(line["loss"]) for line in found if "finding" not in line)
    assert [line["finding"]["name"] for line in found if "finding" in line] == ["first_loss_at_uniform"]
