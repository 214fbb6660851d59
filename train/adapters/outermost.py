"""What happens once per call of a model, at the outermost of its modules that is called."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

CONTAINERS = (torch.nn.ModuleList, torch.nn.ModuleDict)


class Outermost:
    """Calls `begin` before and `end` after the forward of the outermost of the hooked modules.

    Gradient checkpointing computes again in the backward pass whatever its region computed: what layers
    share must be made outside of every region. entered: the modules whose call is under way.
    """

    def __init__(self) -> None:
        self.hooks: list[RemovableHandle] = []
        self.entered: list[torch.nn.Module] = []

    def begin(self, module: torch.nn.Module) -> None:
        """For subclasses; `module` is the outermost one."""

    def end(self) -> None:
        """For subclasses; called where the forward failed, too."""

    def hook(self, model: torch.nn.Module, layers: Collection[str]) -> None:
        """Hook every module that holds all of these layers.

        PEFT calls the forward of some of them without __call__; generate and chunked losses start further in.
        """
        for name, module in model.named_modules():
            if all(_below(layer, name) for layer in layers) and not isinstance(module, CONTAINERS):
                self.hooks.append(module.register_forward_pre_hook(self._enter))
                self.hooks.append(module.register_forward_hook(self._leave, always_call=True))

    def unhook(self) -> None:
        """Take the hooks off the model, for another object to take this one's place."""
        while self.hooks:
            self.hooks.pop().remove()

    def _enter(self, module: torch.nn.Module, arguments: Any) -> None:
        if module in self.entered:  # left by what hooks do not see, a KeyboardInterrupt: nothing is under way
            self.entered.clear()
        self.entered.append(module)
        if len(self.entered) == 1:
            self.begin(module)

    def _leave(self, module: torch.nn.Module, arguments: Any, output: Any) -> None:
        if module in self.entered:
            del self.entered[self.entered.index(module) :]
        if not self.entered:
            self.end()


def _below(layer: str, name: str) -> bool:
    return not name or layer.startswith(f"{name}.")
