"""Attach an adapter: find its layers, refuse what does not fit, prove that it attached to all of them."""

from __future__ import annotations

import difflib
import warnings
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from train import families
from train.adapters.names import in_vision, kind_of, last_part
from train.adapters.reach import misread
from train.config import RunConfig
from train.errors import EXIT_CONFIG, EXIT_TRAINING, UserError

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Target:
    """One kind of layer that gets an adapter: the last part of its name (`visual.` before it in the vision
    tower), its sides, and the full names of the layers of that kind.
    """

    kind: str
    in_features: int
    out_features: int
    modules: tuple[str, ...]


def adapter_module(name: str) -> Any:
    """The file of an adapter: `peft_config`, `faults`, `hint`, `settings`, `attached_faults`, `batched`."""
    return import_module(f"train.adapters.{name}")


def find_targets(model: PreTrainedModel, config: RunConfig) -> list[Target]:
    """The layers that get an adapter; UserError (exit 78) names every target that matches none.

    `auto` means the projections of attention, linear attention and MLP in the language model, for an unknown
    `model_type` all its linear layers; neither head nor routers. Plain names mean the language model, too.
    The vision tower is reached by `vision`, or by patterns of full names.
    """
    linear = _linear_layers(model)
    family = families.family_of(model.config.model_type)
    if config.target_modules == "auto" and family:
        chosen = {name for name in linear if not in_vision(name) and last_part(name) in family.adapts}
        lost = _misread(model, config, chosen)
        chosen = {name for name in chosen if last_part(name) not in lost}
    else:
        chosen = _chosen(linear, config.target_modules)
    grouped: dict[tuple[str, int, int], list[str]] = defaultdict(list)
    for name, (inputs, outputs) in linear.items():
        if name in chosen:
            grouped[kind_of(name), inputs, outputs].append(name)
    return [Target(*key, modules=tuple(names)) for key, names in grouped.items()]


def _misread(model: PreTrainedModel, config: RunConfig, names: Iterable[str]) -> set[str]:
    settings = partial(adapter_module(config.adapter).peft_config, config)
    return misread(model, map(last_part, names), settings)


def _chosen(linear: dict[str, tuple[int, int]], wanted: str | list[str]) -> set[str]:
    language = {name for name in linear if not in_vision(name)}
    if wanted == "auto":
        return language
    if wanted == "vision":
        # Each block's projections; the merger behind the blocks is reached by a pattern.
        if blocks := {name for name in linear if in_vision(name) and ".blocks." in name}:
            return blocks
        raise UserError(
            "target_modules: vision: this model has no vision tower", "auto is for the text", EXIT_CONFIG
        )
    found = {item: _matches(item, linear, language) for item in wanted}
    kinds = sorted({kind_of(name) for name in linear})
    if not wanted:
        raise UserError(
            "target_modules: is empty, nothing would be trained",
            f"name some of {', '.join(kinds)}",
            EXIT_CONFIG,
        )
    if missing := [item for item, names in found.items() if not names]:
        lines = [f"target_modules: {_why_none(item, kinds)}" for item in missing]
        raise UserError("\n".join(lines), f"this model has {', '.join(kinds)}", EXIT_CONFIG)
    return set().union(*found.values())


def _matches(item: str, linear: dict[str, tuple[int, int]], language: set[str]) -> set[str]:
    if any(mark in item for mark in ".*?["):
        return {
            name
            for name in linear
            if fnmatchcase(name, item) or fnmatchcase(name, f"*.{item}") or kind_of(name) == item
        }
    return {name for name in language if last_part(name) == item}


def _why_none(item: str, kinds: list[str]) -> str:
    if routers := families.routers_among([item]):
        return f"{routers[0]} is a router of experts, and is never adapted"
    return f"no linear layer is named {item}{_near(item, kinds)}"


def _linear_layers(model: PreTrainedModel) -> dict[str, tuple[int, int]]:
    """Full name -> (in_features, out_features) of every linear layer but the output head and routers."""
    import torch

    head = model.get_output_embeddings()
    return {
        name: (module.in_features, module.out_features)
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear)
        and module is not head
        and last_part(name) not in families.ROUTERS
    }


def _near(kind: str, kinds: list[str]) -> str:
    near = difflib.get_close_matches(kind, kinds, n=1)
    return f"; did you mean {near[0]}?" if near else ""


def attach(model: PreTrainedModel, config: RunConfig, targets: list[Target]) -> PeftModel:
    """The model with a fresh adapter on every target. Trainable parameters are fp32, whatever the base holds.

    Raises UserError (exit 78) where the settings do not fit the layers, (exit 70) where PEFT attached to
    others, or in another way than the settings say.
    """
    from peft import get_peft_model

    adapter = adapter_module(config.adapter)
    if faults := adapter.faults(config, targets):
        raise UserError("\n".join(faults), adapter.hint(config, targets), EXIT_CONFIG)
    if lost := _misread(model, config, (target.modules[0] for target in targets)):
        raise UserError(
            f"target_modules: {', '.join(sorted(lost))}: PEFT takes these names for experts, which this "
            "transformers holds as one tensor",
            f"leave them out, or train {'an oft' if config.adapter == 'lora' else 'another'} adapter",
            EXIT_CONFIG,
        )
    settings = adapter.peft_config(config, _names(model, targets))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of adjusted blocks: `faults` and `attached_faults` decide on these
        adapted = get_peft_model(model, settings, autocast_adapter_dtype=True)
    due = {name for target in targets for name in target.modules}
    got = set(adapted.targeted_module_names)
    faults = []
    if due != got:
        wrong = ", ".join(sorted(due ^ got)[:5])
        faults = [f"adapter: PEFT attached to {len(got)} layers, {len(due)} are due; for example {wrong}"]
    if faults := faults or adapter.attached_faults(config, targets, adapted):
        raise UserError("\n".join(faults), "", EXIT_TRAINING)
    return batched(adapted)


def _names(model: PreTrainedModel, targets: list[Target]) -> list[str]:
    """What PEFT's config names: the last parts of the names where they mean these layers and no others,
    else the full names.
    """
    due = {name for target in targets for name in target.modules}
    lasts = {last_part(name) for name in due}
    alike = {name for name, _ in model.named_modules() if last_part(name) in lasts}
    return sorted(lasts) if alike == due else sorted(due)


def trainable(model: PeftModel) -> dict[str, Any]:
    """Name -> parameter of everything that is trained."""
    return {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


@dataclass(frozen=True)
class TargetRow:
    """A line of the start-up table; `settings`: the adapter's own, per layer of this kind."""

    kind: str
    in_features: int
    out_features: int
    num_layers: int
    num_parameters: int
    settings: dict[str, int]


def target_table(model: PeftModel, targets: list[Target]) -> list[TargetRow]:
    """Per kind of layer: its sides, how many there are, what the adapter does there, and the parameters
    that are trained in them.
    """
    sizes: dict[str, int] = defaultdict(int)
    owners = {f"base_model.model.{name}.": name for target in targets for name in target.modules}
    for name, parameter in trainable(model).items():
        owner = next((module for prefix, module in owners.items() if name.startswith(prefix)), "")
        sizes[owner] += parameter.numel()
    adapter = kind_module(model)
    layers = dict(model.get_base_model().named_modules())
    return [
        TargetRow(
            target.kind,
            target.in_features,
            target.out_features,
            len(target.modules),
            sum(sizes[name] for name in target.modules),
            adapter.layer_settings(layers[target.modules[0]], model.active_adapter),
        )
        for target in targets
    ]


def kind_module(model: PeftModel) -> Any:
    """The file of the adapter that a model carries, by PEFT's own word for it."""
    active: Any = model.peft_config[model.active_adapter]
    return adapter_module(active.peft_type.value.lower())


def batched(model: PeftModel) -> PeftModel:
    """The same model; PEFT's layers read from computations that are made once for many of them.

    Models of unknown types keep PEFT's own layers.
    """
    inside: Any = model.get_base_model()
    if not families.may_batch(inside.config.model_type):
        return model
    return kind_module(model).batched(model)
