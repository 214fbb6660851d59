"""Models for the benchmarks: a Qwen2 of any size, bare or with an adapter, by PEFT's layers or by ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SMALL = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 24,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
"""So small that launches, and not arithmetic, take the time; 24 layers as in Qwen2.5-0.5B."""
LARGE = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 3,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 4096,
}
"""The widths of Qwen2.5-0.5B, with few layers and a small head."""
VARIANTS = (
    "bare",
    "PEFT LoRA",
    "LoRA",
    "PEFT OFT series",
    "PEFT OFT exact",
    "OFT series",
    "OFT exact",
)


def make_model(variant: str, sizes: dict[str, int], rank: int = 8, block: int = 32) -> Any:
    """A model in training mode, the same weights for each variant of a size; one of VARIANTS.

    The bare one trains nothing, and takes the gradient down to its input: the work that every adapter does.
    The adapters' weights are small and random, as after some steps.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    model: Any = Qwen2ForCausalLM(Qwen2Config(max_position_embeddings=2048, **sizes)).train()
    if variant == "bare":
        model.requires_grad_(False)
        model.enable_input_require_grads()
        return model
    adapted = adapt(model, variant, rank, block)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.01, generator=generator)
    return adapted


def adapt(model: Any, variant: str, rank: int, block: int) -> Any:
    """The model with the adapter of a variant that is not bare, its weights as they begin."""
    from peft import LoraConfig, OFTConfig, get_peft_model

    from train.adapters import attach

    settings: Any
    if variant.endswith("LoRA"):
        settings = LoraConfig(task_type="CAUSAL_LM", target_modules=TARGETS, r=rank, lora_alpha=16)
    else:
        settings = OFTConfig(
            task_type="CAUSAL_LM",
            target_modules=TARGETS,
            r=0,
            oft_block_size=block,
            use_cayley_neumann=variant.endswith("series"),
        )
    model = get_peft_model(model, settings)
    return model if variant.startswith("PEFT") else attach.batched(model)


def make_ids(sizes: dict[str, int], tokens: int) -> torch.Tensor:
    """One row of random tokens, int64 [1, tokens]."""
    import torch

    return torch.randint(0, sizes["vocab_size"], (1, tokens), generator=torch.Generator().manual_seed(0))
