"""The adapter that a run starts from: a fresh one, or a trained one to go on with (`init_adapter`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from train.adapters import attach, oft
from train.adapters.saved import AdapterConfig, load_adapter, read_adapter_config
from train.config import RunConfig
from train.errors import EXIT_CONFIG, UserError
from train.loop.lines import say

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel


KEPT_AS = {"oft_num_blocks": "r"}
"""Fields of the recipe that adapter_config.json keeps by another name."""
ABSENT = object()


def check_init_adapter(config: RunConfig) -> AdapterConfig | None:
    """The folder of `init_adapter`; UserError (exit 78) names every setting that is not what the folder says.

    Settings come from the folder: a recipe may repeat them, and may leave them out. The map that makes
    rotations (`oft.cayley`) may be another one: the weights are then converted.
    """
    if config.init_adapter is None:
        return None
    saved = read_adapter_config(config.init_adapter)
    if saved.kind != config.adapter:
        raise UserError(
            f"adapter: {config.adapter} was asked for, {saved.folder} holds {saved.kind}",
            f"--adapter {saved.kind} goes on with it; without init_adapter a fresh {config.adapter} is made",
            EXIT_CONFIG,
        )
    faults = [
        f"{name}: {asked!r} was asked for, {saved.folder} has {found!r}"
        for name, (asked, found) in _explicit(config, saved).items()
        if asked != found
    ]
    if faults:
        raise UserError(
            "\n".join(faults), "leave these out: an adapter goes on with the settings it has", EXIT_CONFIG
        )
    return saved


def _explicit(config: RunConfig, saved: AdapterConfig) -> dict[str, tuple[Any, Any]]:
    """Setting -> (what the recipe or command line says, what the adapter has), where it is said and PEFT
    keeps it.
    """
    found: dict[str, tuple[Any, Any]] = {}
    settings = getattr(config, config.adapter)
    for name in sorted(settings.model_fields_set) if config.adapter in config.model_fields_set else ():
        asked, kept = getattr(settings, name), saved.values.get(KEPT_AS.get(name, name), ABSENT)
        if name == "oft_block_size" and asked == "auto":
            asked = oft.AUTO_BLOCK  # PEFT's config says so, and each layer has the nearest that divides it
        elif name == "oft_num_blocks":
            kept = kept or None
        if kept is not ABSENT:
            found[f"{config.adapter}.{name}"] = (asked, kept)
    return found


def initial_adapter(
    model: PreTrainedModel, config: RunConfig, device_type: str
) -> tuple[PeftModel, list[attach.Target]]:
    """The model on its device with the adapter that is to be trained, and the layers that have it.

    Fresh weights are drawn on the CPU, by the recipe's seed alone: the same ones for every device.
    Raises UserError (exit 78) where settings, layers and folder do not fit, (exit 70) where PEFT attached to
    others.
    """
    saved = check_init_adapter(config)
    if saved is None:
        targets = attach.find_targets(model, config)
        with _drawing_on_cpu(config.seed):
            adapted = attach.attach(model, config, targets)
        adapted.to(device_type)
        return adapted, targets
    linear = attach.find_targets(model, config.model_copy(update={"target_modules": ["*"]}))
    asked = attach.find_targets(model, config)
    model.to(device_type)  # type: ignore[arg-type]  # a decorator hides the method's signature
    adapted = load_adapter(model, saved.folder, trainable=True)
    if config.adapter == "oft" and "cayley" in config.oft.model_fields_set:
        _take_cayley(adapted, exact=config.oft.cayley == "exact")
    has = set(adapted.targeted_module_names)
    if config.target_modules != "auto" and has != (due := {name for part in asked for name in part.modules}):
        raise UserError(
            f"target_modules: {len(due)} layers were asked for, {saved.folder} has {len(has)}; "
            f"for example {', '.join(sorted(due ^ has)[:3])}",
            "leave target_modules out: an adapter goes on with the layers it has",
            EXIT_CONFIG,
        )
    if others := has - {name for target in linear for name in target.modules}:
        raise UserError(
            f"init_adapter {saved.folder}: adapts layers that isotune does not train: "
            f"{', '.join(sorted(others)[:5])}",
            "take an adapter of attention and MLP layers",
            EXIT_CONFIG,
        )
    kept = [
        replace(target, modules=tuple(name for name in target.modules if name in has)) for target in linear
    ]
    return adapted, [target for target in kept if target.modules]


@contextmanager
def _drawing_on_cpu(seed: int) -> Iterator[None]:
    """Random numbers come from the CPU's generator, by this seed alone; its state is put back afterwards."""
    import torch

    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.random.default_generator.manual_seed(seed)
        yield


def _take_cayley(adapted: PeftModel, exact: bool) -> None:
    """Go over to the map that was asked for, and say so."""
    if oft.is_exact(adapted) != exact:
        oft.convert_cayley(adapted, exact)
        now, was = ("exact", "series") if exact else ("series", "exact")
        say([f"note: oft.cayley: {now} was asked for, the adapter is of {was}: its weights are converted"])
