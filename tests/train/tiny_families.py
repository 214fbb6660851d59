"""A tiny random model of each Qwen text family, with a layer of every kind that the family has."""

from __future__ import annotations

from typing import Any

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


def tiny_config(model_type: str) -> Any:
    """transformers' configuration; ValueError where this transformers does not know the type."""
    from transformers import AutoConfig

    return AutoConfig.for_model(model_type, **SMALL, **FIELDS[model_type])


def tiny_model(model_type: str) -> Any:
    """A random model in fp32, the same for the same type.

    Routers are random, too: those of transformers 5 start at zero, and would send all tokens to the same
    experts.
    """
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(tiny_config(model_type))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(".mlp.gate.weight"):
                parameter.normal_(std=0.5)
    return model
