"""What an adapter cannot take hold of: experts in one tensor, and names that PEFT reads as others."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata
from typing import TYPE_CHECKING, Any

from train import families
from train.adapters.names import in_vision, last_part

if TYPE_CHECKING:
    from peft import PeftConfig, PeftModel


def misread(model: Any, names: Iterable[str], settings_of: Any) -> set[str]:
    """Of last parts of names those that PEFT would not take for the layers of these names.

    For LoRA on transformers 5 it maps names of some families' experts, as transformers 4 had them, to the
    tensors that hold them now, also where they are those of a dense MLP or a shared expert; and again when an
    adapter is loaded. settings_of: from a list of names to PEFT's config.
    """
    try:
        from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers
    except ImportError:  # transformers 4, or a PEFT without such a mapping
        return set()
    found = set()
    for name in sorted(set(names)):
        settings: PeftConfig = settings_of([name])
        try:
            convert_peft_config_for_transformers(settings, model=model, conversions=None)
        except ValueError:  # two names that became one tensor are due together
            found.add(name)
            continue
        if set(getattr(settings, "target_modules", None) or ()) != {name}:
            found.add(name)
    return found


def left_out(model: PeftModel) -> list[str]:
    """What `auto` means and the adapter does not take hold of, for the start-up table."""
    inside: Any = model.get_base_model()
    fused = [
        parameter
        for name, parameter in inside.named_parameters()
        if parameter.dim() == 3 and families.EXPERTS in name.split(".")
    ]
    lines = []
    if fused:
        lines.append(
            f"experts: {_total(fused):,} parameters not adapted: this transformers holds the experts of a "
            "layer as one tensor, and adapters take hold of linear layers"
        )
    family = families.family_of(inside.config.model_type)
    bare = {} if family is None else _bare(inside, family.adapts)
    if bare:
        kinds = ", ".join(sorted({last_part(name) for name in bare}))
        lines.append(
            f"{kinds}: {_total(bare.values()):,} parameters not adapted: PEFT {metadata.version('peft')} "
            "takes these names for experts; adapter oft adapts them"
        )
    return lines


def _bare(model: Any, kinds: tuple[str, ...]) -> dict[str, Any]:
    """Full name -> weight of the linear layers of these kinds that have no adapter."""
    import torch

    return {
        name: module.weight
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and last_part(name) in kinds and not in_vision(name)
    }


def _total(tensors: Iterable[Any]) -> int:
    return sum(tensor.numel() for tensor in tensors)
