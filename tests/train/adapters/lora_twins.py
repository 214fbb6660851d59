"""Two equal tiny models with equal LoRA adapters: PEFT's own, and the one whose factors are put together."""

from __future__ import annotations

from typing import Any

import torch
from oft_twins import TARGETS, base_model, fill, gradients, loss_of
from peft import LoraConfig, PeftModel, get_peft_model

from train.adapters import attach


def with_lora(model: Any, std: float = 0.05, **settings: Any) -> PeftModel:
    """PEFT's LoRA adapter with random weights, the same for the same arguments."""
    fields = {"r": 4, "lora_alpha": 6, "target_modules": TARGETS, **settings}
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **fields))
    fill(adapted, std)
    return adapted


def twins(
    family: str = "qwen2", num_layers: int = 2, dtype: torch.dtype = torch.float32, **settings: Any
) -> tuple[PeftModel, PeftModel]:
    """PEFT's model and ours, in training mode."""
    pair = [with_lora(base_model(family, num_layers).to(dtype), **settings).train() for _ in range(2)]
    return pair[0], attach.batched(pair[1])


def step(model: Any) -> dict[str, torch.Tensor]:
    """The gradients after a forward and a backward."""
    loss_of(model).backward()
    return gradients(model)


def checkpointed(model: Any, reentrant: bool = False) -> None:
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
