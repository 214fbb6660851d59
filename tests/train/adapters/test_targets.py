"""Which layers get an adapter: by name, by pattern, and the vision tower of Qwen2.5-VL alone."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch
from oft_twins import fill, gap, gradients, trained

from train.adapters import attach
from train.adapters.oft_layer import BatchedLinear
from train.config import RunConfig
from train.errors import EXIT_CONFIG, UserError

IMAGE, START = 5, 6
VISION_KINDS = {"visual.qkv", "visual.proj", "visual.gate_proj", "visual.up_proj", "visual.down_proj"}
TEXT_KINDS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
BLOCK_LAYERS = 2 * 5


@pytest.fixture(scope="module")
def template() -> Any:
    """A random Qwen2.5-VL whose vision MLP has 90 units: as with 3420, 32 does not divide them."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    vision = {
        "depth": 2,
        "hidden_size": 64,
        "intermediate_size": 90,
        "num_heads": 4,
        "out_hidden_size": 64,
        "patch_size": 4,
        "temporal_patch_size": 1,
        "window_size": 16,
        "fullatt_block_indexes": [1],
    }
    text = {
        "vocab_size": 64,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "bos_token_id": None,
        "eos_token_id": None,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
    }
    torch.manual_seed(0)
    return Qwen2_5_VLForConditionalGeneration(
        Qwen2_5_VLConfig(
            text_config=text,
            vision_config=vision,
            image_token_id=IMAGE,
            vision_start_token_id=START,
            vision_end_token_id=7,
            video_token_id=8,
        )
    )


@pytest.fixture
def model(template: Any) -> Any:
    return copy.deepcopy(template)


def config(targets: Any, adapter: str = "oft", **settings: Any) -> RunConfig:
    return RunConfig.model_validate(
        {"adapter": adapter, "model": "m", "data": "d", "output": "o", "target_modules": targets}
        | ({adapter: settings} if settings else {})
    )


def attached(model: Any, targets: Any, adapter: str = "oft", **settings: Any) -> Any:
    chosen = config(targets, adapter, **settings)
    return attach.attach(model, chosen, attach.find_targets(model, chosen))


def inputs() -> dict[str, torch.Tensor]:
    """One image of 4 x 4 patches, merged to 4 tokens, between words."""
    ids = torch.tensor([[10, START, IMAGE, IMAGE, IMAGE, IMAGE, 7, 11, 12, 13]])
    pixels = torch.randn(16, 3 * 4 * 4, generator=torch.Generator().manual_seed(0))
    return {
        "input_ids": ids,
        "labels": ids,
        "pixel_values": pixels,
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
        "mm_token_type_ids": (ids == IMAGE).int(),
    }


def kinds(targets: list[attach.Target]) -> set[str]:
    return {target.kind for target in targets}


def test_auto_is_the_text_and_vision_the_blocks_of_the_tower(model: Any) -> None:
    text = attach.find_targets(model, config("auto"))
    assert kinds(text) == TEXT_KINDS
    assert not any("visual" in name for target in text for name in target.modules)
    tower = attach.find_targets(model, config("vision"))
    assert kinds(tower) == VISION_KINDS
    names = [name for target in tower for name in target.modules]
    assert len(names) == BLOCK_LAYERS and all(".visual.blocks." in name for name in names)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("visual.blocks.*.attn.qkv", ["model.visual.blocks.0.attn.qkv", "model.visual.blocks.1.attn.qkv"]),
        ("model.visual.blocks.1.attn.qkv", ["model.visual.blocks.1.attn.qkv"]),
        ("visual.qkv", ["model.visual.blocks.0.attn.qkv", "model.visual.blocks.1.attn.qkv"]),
        ("visual.merger.mlp.*", ["model.visual.merger.mlp.0", "model.visual.merger.mlp.2"]),
        ("language_model.layers.[0-9].mlp.up_proj", ["model.language_model.layers.0.mlp.up_proj"]),
        ("q_proj", ["model.language_model.layers.0.self_attn.q_proj"]),
        ("up_proj", ["model.language_model.layers.0.mlp.up_proj"]),
    ],
)
def test_patterns_mean_full_names_and_plain_names_the_text(
    model: Any, pattern: str, expected: list[str]
) -> None:
    targets = attach.find_targets(model, config([pattern]))
    assert [name for target in targets for name in target.modules] == expected


def test_patterns_and_names_add_up_and_none_may_match_nothing(model: Any) -> None:
    targets = attach.find_targets(model, config(["q_proj", "visual.blocks.0.*"]))
    assert kinds(targets) == {"q_proj", *VISION_KINDS}
    with pytest.raises(UserError) as caught:
        attach.find_targets(model, config(["qkv", "visual.block.*.qkv", "visual.blocks.*"]))
    assert caught.value.message.splitlines() == [
        "target_modules: no linear layer is named qkv",
        "target_modules: no linear layer is named visual.block.*.qkv; did you mean visual.qkv?",
    ]
    assert caught.value.exit_code == EXIT_CONFIG


def test_a_text_model_has_no_vision_tower() -> None:
    from oft_twins import base_model

    with pytest.raises(UserError, match="this model has no vision tower") as caught:
        attach.find_targets(base_model(), config("vision"))
    assert caught.value.exit_code == EXIT_CONFIG


@pytest.mark.parametrize("adapter", ["oft", "lora"])
@pytest.mark.parametrize("checkpoints", [False, True])
def test_the_tower_trains_with_the_text_frozen(model: Any, adapter: str, checkpoints: bool) -> None:
    settings: dict[str, Any] = {"oft_block_size": "auto"} if adapter == "oft" else {"r": 4}
    adapted = attached(model, "vision", adapter, **settings).train()
    fill(adapted, 0.05)
    if checkpoints:
        adapted.gradient_checkpointing_enable({"use_reentrant": False})
    assert all(".visual.blocks." in name for name in trained(adapted))
    adapted(**inputs()).loss.backward()
    found = gradients(adapted)
    assert found.keys() == trained(adapted).keys()
    assert len(found) == BLOCK_LAYERS * (1 if adapter == "oft" else 2)
    assert all(tensor.abs().max() > 0 for tensor in found.values())
    assert all(p.grad is None for p in adapted.parameters() if not p.requires_grad)


def test_a_table_row_says_the_blocks_of_each_kind(model: Any) -> None:
    chosen = config("vision", oft_block_size="auto")
    targets = attach.find_targets(model, chosen)
    rows = attach.target_table(attach.attach(model, chosen, targets), targets)
    shown = {row.kind: (row.in_features, row.settings, row.num_parameters) for row in rows}
    assert shown["visual.qkv"] == (64, {"oft_block_size": 32, "oft_num_blocks": 2}, 2 * 2 * 496)
    assert shown["visual.down_proj"] == (90, {"oft_block_size": 30, "oft_num_blocks": 3}, 2 * 3 * 435)


def plain_peft(model: Any) -> Any:
    from peft import OFTConfig, get_peft_model

    names = [f"model.visual.blocks.{n}.{kind}" for n in range(2) for kind in ("attn.qkv", "attn.proj")]
    names += [f"model.visual.blocks.{n}.mlp.{kind}_proj" for n in range(2) for kind in ("gate", "up", "down")]
    settings = OFTConfig(target_modules=names, r=0, oft_block_size=32, use_cayley_neumann=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the adjusted block
        return get_peft_model(model, settings)


def test_the_tower_turns_and_learns_as_with_plain_peft(template: Any) -> None:
    ours = attached(copy.deepcopy(template), "vision", oft_block_size="auto").train()
    plain = plain_peft(copy.deepcopy(template)).train()
    sizes = [
        {
            name: module.oft_block_size["default"]
            for name, module in model.named_modules()
            if hasattr(module, "oft_R")
        }
        for model in (plain, ours)
    ]
    assert sizes[0] == sizes[1] and set(sizes[1].values()) == {30, 32}
    assert sum(isinstance(module, BatchedLinear) for module in ours.modules()) == BLOCK_LAYERS
    found = []
    for model in (plain, ours):
        fill(model, 0.05)
        loss = model(**inputs()).loss
        loss.backward()
        found.append((loss.item(), gradients(model)))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-6)
    assert gap(found[0][1], found[1][1]) < 1e-6


def test_words_alone_leave_the_tower_without_gradients(model: Any) -> None:
    adapted = attached(model, "vision", oft_block_size="auto").train()
    ids = torch.tensor([[10, 11, 12, 13]])
    loss = adapted(input_ids=ids, labels=ids).loss
    assert not loss.requires_grad
    assert not gradients(adapted)
