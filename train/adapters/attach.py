"""Attach an adapter: find its layers, refuse what does not fit, prove that it attached to all of them."""

from __future__ import annotations

import difflib
from collections import defaultdict
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from train.config import RunConfig
from train.errors import EXIT_CONFIG, EXIT_TRAINING, UserError

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Target:
    """One kind of layer that gets an adapter: the last part of its name, its sides, and the modules of
    that kind.
    """

    kind: str
    in_features: int
    out_features: int
    modules: tuple[str, ...]


def adapter_module(name: str) -> Any:
    """The file of an adapter: `peft_config`, `faults`, `hint`."""
    return import_module(f"train.adapters.{name}")


def find_targets(model: PreTrainedModel, config: RunConfig) -> list[Target]:
    """The layers that get an adapter; UserError (exit 78) names every target that matches none.

    `auto` takes every linear layer but the output head: the projections of attention and MLP in each block.
    """
    linear = _linear_layers(model)
    kinds = sorted({name.rsplit(".", 1)[-1] for name in linear})
    wanted = kinds if config.target_modules == "auto" else list(config.target_modules)
    if not wanted:
        raise UserError(
            "target_modules: is empty, nothing would be trained",
            f"name some of {', '.join(kinds)}",
            EXIT_CONFIG,
        )
    missing = [kind for kind in wanted if kind not in kinds]
    if missing:
        lines = [f"target_modules: no linear layer is named {kind}{_near(kind, kinds)}" for kind in missing]
        raise UserError("\n".join(lines), f"this model has {', '.join(kinds)}", EXIT_CONFIG)
    grouped: dict[tuple[str, int, int], list[str]] = defaultdict(list)
    for name, (inputs, outputs) in linear.items():
        kind = name.rsplit(".", 1)[-1]
        if kind in wanted:
            grouped[kind, inputs, outputs].append(name)
    return [Target(*key, modules=tuple(names)) for key, names in grouped.items()]


def _linear_layers(model: PreTrainedModel) -> dict[str, tuple[int, int]]:
    """Full name -> (in_features, out_features) of every linear layer but the output head."""
    import torch

    head = model.get_output_embeddings()
    return {
        name: (module.in_features, module.out_features)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    }


def _near(kind: str, kinds: list[str]) -> str:
    near = difflib.get_close_matches(kind, kinds, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def attach(model: PreTrainedModel, config: RunConfig, targets: list[Target]) -> PeftModel:
    """The model with a fresh adapter on every target. Trainable parameters are fp32, whatever the base holds.

    Raises UserError (exit 78) where the settings do not fit the layers, (exit 70) where PEFT attached to
    others.
    """
    from peft import get_peft_model

    adapter = adapter_module(config.adapter)
    if faults := adapter.faults(config, targets):
        raise UserError("\n".join(faults), adapter.hint(config, targets), EXIT_CONFIG)
    kinds = sorted({target.kind for target in targets})
    adapted = get_peft_model(model, adapter.peft_config(config, kinds), autocast_adapter_dtype=True)
    due = {name for target in targets for name in target.modules}
    got = set(adapted.targeted_module_names)
    if due != got:
        wrong = ", ".join(sorted(due ^ got)[:5])
        raise UserError(
            f"adapter: PEFT attached to {len(got)} layers, {len(due)} are due; for example {wrong}",
            "",
            EXIT_TRAINING,
        )
    return adapted


def trainable(model: PeftModel) -> dict[str, Any]:
    """Name -> parameter of everything that is trained."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


@dataclass(frozen=True)
class TargetRow:
    """A line of the start-up table."""

    kind: str
    in_features: int
    out_features: int
    num_layers: int
    num_parameters: int


def target_table(model: PeftModel, targets: list[Target]) -> list[TargetRow]:
    """Per kind of layer: its sides, how many there are, and the parameters that are trained in them."""
    sizes: dict[str, int] = defaultdict(int)
    owners = {f"base_model.model.{name}.": name for target in targets for name in target.modules}
    for name, parameter in trainable(model).items():
        owner = next((module for prefix, module in owners.items() if name.startswith(prefix)), "")
        sizes[owner] += parameter.numel()
    return [
        TargetRow(
            target.kind,
            target.in_features,
            target.out_features,
            len(target.modules),
            sum(sizes[name] for name in target.modules),
        )
        for target in targets
    ]
