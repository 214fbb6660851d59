"""Two equal tiny models with equal OFT adapters: PEFT's own, and the one whose rotations are one batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from peft import OFTConfig, PeftModel, get_peft_model

from train.adapters import attach

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
IDS = torch.arange(24).view(2, 12)
OTHER_IDS = torch.arange(7, 31).view(2, 12)
SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "eos_token_id": None,
    "pad_token_id": 0,
    "bos_token_id": None,
}


def base_model(family: str = "qwen2", num_layers: int = 2, **sizes: Any) -> Any:
    """A random model, the same for the same arguments."""
    import transformers

    kinds: dict[str, tuple[Any, Any]] = {
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM),
    }
    config, model = kinds[family]
    extra = {"head_dim": 16} if family == "qwen3" else {}
    torch.manual_seed(0)
    return model(config(**{**SIZES, "num_hidden_layers": num_layers, **extra, **sizes}))


def with_adapter(model: Any, std: float = 0.05, **settings: Any) -> PeftModel:
    """PEFT's OFT adapter with random weights, the same for the same arguments."""
    fields = {"r": 0, "oft_block_size": 16, "use_cayley_neumann": False, **settings}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of adjusted blocks, which are wanted here
        adapted = get_peft_model(
            model, OFTConfig(task_type="CAUSAL_LM", target_modules=fields.pop("targets", TARGETS), **fields)
        )
    fill(adapted, std)
    return adapted


def fill(model: Any, std: float, seed: int = 1) -> None:
    """Random weights in the trainable parameters."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in trained(model).values():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * std)


def twins(
    family: str = "qwen2",
    num_layers: int = 2,
    dtype: torch.dtype = torch.float32,
    std: float = 0.05,
    sizes: dict[str, Any] | None = None,
    **settings: Any,
) -> tuple[PeftModel, PeftModel]:
    """PEFT's model and ours, in training mode."""
    pair = [
        with_adapter(base_model(family, num_layers, **(sizes or {})).to(dtype), std, **settings).train()
        for _ in range(2)
    ]
    return pair[0], attach.batched(pair[1])


def trained(model: Any) -> dict[str, torch.nn.Parameter]:
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


def loss_of(model: Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    return model(input_ids=ids, labels=ids).loss


def logits_of(model: Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=ids).logits.float()


def gradients(model: Any) -> dict[str, torch.Tensor]:
    """Of every trainable parameter; a missing one is a KeyError for who compares."""
    return {name: p.grad.clone() for name, p in trained(model).items() if p.grad is not None}


def gap(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    """The largest difference; the names must be the same, and something must differ from zero."""
    assert left.keys() == right.keys()
    assert max(tensor.abs().max() for tensor in left.values()) > 1e-3
    return max((left[name].float() - right[name].float()).abs().max().item() for name in left)


def do_both(pair: tuple[PeftModel, PeftModel], work: Callable[[Any], Any]) -> tuple[Any, Any]:
    return work(pair[0]), work(pair[1])


def layer(model: Any, name: str, number: int = 0) -> Any:
    """An adapted layer of a text model by the last part of its name."""
    block = model.get_base_model().model.layers[number]
    return getattr(block.self_attn if hasattr(block.self_attn, name) else block.mlp, name)
