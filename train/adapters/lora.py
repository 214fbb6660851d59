"""LoRA in PEFT's format (arXiv 2106.09685)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from train.config import RunConfig

if TYPE_CHECKING:
    from peft import LoraConfig

    from train.adapters.attach import Target


def faults(config: RunConfig, targets: list[Target]) -> list[str]:
    """What keeps these settings from fitting these layers: a rank above a layer's sides adds nothing."""
    return [
        f"lora.r: {config.lora.r} is more than {target.kind} has: "
        f"{target.in_features} inputs, {target.out_features} outputs"
        for target in targets
        if config.lora.r > min(target.in_features, target.out_features)
    ]


def hint(config: RunConfig, targets: list[Target]) -> str:
    """The setting that fits every layer."""
    most = min(min(target.in_features, target.out_features) for target in targets)
    return f"--set lora.r={most} is the largest that fits every layer"


def peft_config(config: RunConfig, kinds: list[str]) -> LoraConfig:
    """PEFT's configuration for these kinds of target modules."""
    from peft import LoraConfig

    return LoraConfig(
        task_type="CAUSAL_LM",
        target_modules=kinds,
        r=config.lora.r,
        lora_alpha=config.lora.lora_alpha,  # type: ignore[arg-type]  # PEFT says int and computes with any number
        lora_dropout=config.lora.lora_dropout,
    )
