"""A tiny random model of each Qwen text family, with a layer of every kind that the family has."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from train import families
from train.adapters import attach
from train.config import RunConfig

SMALL: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
HEADS = {"head_dim": 16}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
SHARED = {"shared_expert_intermediate_size": 48}
DENSE_FIRST = {"mlp_only_layers": [0]}
LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention"],
}
STREAMS_AND_NGRAMS = {
    "layer_types": ["linear_attention", "indexed_attention"],
    "hc_count": 2,
    "hc_lowrank": 16,
    "ple_layer_ids": [1],
    "ple_embed_dim": 32,
    "ngram_vocab_size_base": 64,
    "heads_per_ngram": 2,
    "make_ngram_vocab_size_divisible_by": 8,
    "split_ngram_parts": 2,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 8,
    "indexer_compress_ratio": 4,
}
FIELDS: dict[str, dict[str, Any]] = {
    "qwen2": {},
    "qwen3": HEADS,
    "qwen2_moe": EXPERTS | SHARED | DENSE_FIRST,
    "qwen3_moe": HEADS | EXPERTS | DENSE_FIRST,
    "qwen3_next": HEADS | LINEAR | EXPERTS | SHARED | DENSE_FIRST,
    "qwen3_5_text": HEADS | LINEAR,
    "qwen3_5_moe_text": HEADS | LINEAR | EXPERTS | SHARED,
    "qwen4_exp_text": HEADS | LINEAR | EXPERTS | SHARED | STREAMS_AND_NGRAMS,
}
"""By the type of the text model; each family of train/families.py has one here."""


def tiny_model(model_type: str, **fields: Any) -> Any:
    """A random model in fp32, the same for the same type; ValueError where this transformers has none.

    Routers are random, too: those of transformers 5 start at zero, and would send all tokens to the same
    experts.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(model_type, **{**SMALL, **FIELDS[model_type], **fields})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".mlp.gate.weight"):
                parameter.normal_(std=0.5)
    return model


FAMILIES = {family.model_types[-1]: family for family in families.FAMILIES}
VERSION = families.transformers_version()
SETTINGS = {"lora": {"r": 4}, "oft": {"oft_block_size": 8}}
EXACT = 1e-6


def write_checkpoint(tokenizer: Path, folder: Path, model: Any) -> Path:
    """A model's checkpoint, with the tokenizer files of another folder."""
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (tokenizer / name).exists():
            shutil.copy(tokenizer / name, folder / name)
    return folder


def is_claimed(versions: tuple[str, ...]) -> bool:
    """Whether a row of the table claims something for what is installed; the newest stands for others."""
    return (VERSION if VERSION in families.TESTED_SETS else [*families.TESTED_SETS][-1]) in versions


def config_for(adapter: str, targets: Any = "auto") -> RunConfig:
    fields = {"model": "m", "data": "d", "output": "o", "target_modules": targets}
    return RunConfig.model_validate({"adapter": adapter, adapter: SETTINGS[adapter], **fields})


def targets_of(model: Any, adapter: str) -> set[str]:
    """Full names of what `auto` adapts."""
    return {name for part in attach.find_targets(model, config_for(adapter)) for name in part.modules}


def trained(model: Any) -> dict[str, Any]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def fill(model: Any, std: float) -> None:
    """Random weights in the trainable parameters, the same for each model."""
    import torch

    generator = torch.Generator().manual_seed(1)
    for parameter in trained(model).values():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * std)


def loss_of(model: Any) -> Any:
    import torch

    ids = torch.arange(24).view(2, 12)
    return model(input_ids=ids, labels=ids).loss
