"""A checkpoint with or without an adapter, opened for use: what eval, generate and merge have in common."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

from train import families
from train.adapters.saved import load_adapter, read_adapter_config
from train.data.template import ChatTemplate
from train.detect import require_torch
from train.device import DeviceChoices, choose
from train.errors import UserError, reading
from train.image import read_build_info
from train.loop.model import (
    find_stop_tokens,
    load_model,
    load_tokenizer,
    quiet_libraries,
    read_model_config,
)

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ModelOptions:
    """What to open, and how; all but the first two as the recipe's fields of the same names."""

    model: Path
    adapter: Path | None = None
    device: str = "auto"
    precision: str = "auto"
    attn_implementation: str = "auto"
    thinking: str = "auto"
    train_on: Literal["all", "last"] = "all"
    probe: str = "auto"
    pinned_memory: str = "off"
    loss_scale: str = "auto"


@dataclass(frozen=True)
class Opened:
    """A checkpoint without its weights: all that can be wrong before they are loaded has been looked at."""

    options: ModelOptions
    model_config: dict[str, Any]
    template: ChatTemplate
    stop_token_ids: list[int]
    choices: DeviceChoices


def open_checkpoint(options: ModelOptions, lines: IO[str]) -> Opened:
    """Read everything but weights; UserError (exit 78, 69) for folders, adapter, tokenizer, device.

    What is wrong with both folders is said at once. Notes and choices go to `lines`.
    """
    faults = []
    rotates = False
    model_config: dict[str, Any] = {}
    try:
        model_config = read_model_config(options.model)
    except UserError as fault:
        faults.append(fault)
    try:
        if options.adapter is not None:
            rotates = read_adapter_config(options.adapter).kind == "oft"
    except UserError as fault:
        faults.append(fault)
    if faults:
        hints = "; ".join(fault.hint for fault in faults if fault.hint)
        raise UserError("\n".join(fault.message for fault in faults), hints, faults[0].exit_code)
    require_torch()
    quiet_libraries()
    for note in families.notes(model_config):
        print(note, file=lines)
    choices = choose(options, read_build_info(), rotates)
    template = ChatTemplate(
        load_tokenizer(options.model),
        _thinking(options, lines),
        options.train_on,
        _own_template(options, lines),
    )
    stop_token_ids = find_stop_tokens(template, options.model)
    return Opened(options, families.of_text(model_config), template, stop_token_ids, choices)


def _thinking(options: ModelOptions, lines: IO[str]) -> Any:
    """The template's switch: as asked for, or as the adapter was trained."""
    saved = read_adapter_config(options.adapter).manifest if options.adapter else None
    if options.thinking != "auto" or saved is None or saved.thinking == "auto":
        return options.thinking
    print(f"thinking: {saved.thinking}, as the adapter was trained", file=lines)
    return saved.thinking


def _own_template(options: ModelOptions, lines: IO[str]) -> Path | None:
    """The chat template that an adapter was trained with, where it is not its base's."""
    saved = [folder / "chat_template.jinja" for folder in (options.adapter, options.model) if folder]
    if options.adapter is None or not saved[0].exists():
        return None
    with reading(saved[0], "copy the adapter again"):
        text = saved[0].read_bytes()
    with reading(saved[-1], "copy the checkpoint again"):
        is_same = saved[-1].exists() and text == saved[-1].read_bytes()
    if not is_same:
        print(f"chat template: that of the adapter, {saved[0]}", file=lines)
    return saved[0]


def load(opened: Opened, lines: IO[str], dtype: torch.dtype | None = None) -> Any:
    """The model on its device, in eval mode, with its adapter where one was named.

    A PeftModel then, a PreTrainedModel else. `dtype`: another than the choices name.
    """
    options, choices = opened.options, opened.choices
    model: Any = load_model(options.model, dtype or choices.dtype, choices.attn_implementation.value)
    model.to(choices.device.value)
    if options.adapter is not None:
        model = load_adapter(model, options.adapter, trainable=False, lines=lines)
    return model.eval()
