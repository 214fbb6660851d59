"""LoRA in PEFT's format (arXiv 2106.09685)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from train.config import RunConfig

if TYPE_CHECKING:
    from peft import LoraConfig, PeftModel

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


def notes(config: RunConfig) -> list[str]:
    """What is to be said of the settings before training."""
    if config.lora.use_dora:
        return ["note: lora.use_dora: PEFT's own layers compute DoRA, each for itself: more time and memory"]
    return []


def layer_settings(layer: Any, adapter: str) -> dict[str, int]:
    """What the start-up table says of a layer with this adapter."""
    return {"r": layer.r[adapter]}


def attached_faults(config: RunConfig, targets: list[Target], model: PeftModel) -> list[str]:
    """None: PEFT takes LoRA's settings as they are."""
    return []


def batched(model: PeftModel) -> PeftModel:
    """The same model, its layers that read one input computed together."""
    from train.adapters import lora_layer

    return lora_layer.batched(model)


def peft_config(config: RunConfig, names: list[str]) -> LoraConfig:
    """PEFT's configuration for these target modules."""
    from peft import LoraConfig

    return LoraConfig(
        task_type="CAUSAL_LM",
        target_modules=names,
        r=config.lora.r,
        lora_alpha=config.lora.lora_alpha,  # type: ignore[arg-type]  # PEFT says int and computes with any number
        lora_dropout=config.lora.lora_dropout,
        use_rslora=config.lora.use_rslora,
        use_dora=config.lora.use_dora,
    )
