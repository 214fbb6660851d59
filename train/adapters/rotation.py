"""All rotations of a model in one batch: one Cayley map per step, one batched product per input.

PEFT computes the map in every layer and launches thousands of small operators for it. Here the skew
parameters of all layers (PEFT's own, in PEFT's format) are put together, mapped once, and each layer reads
its slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from train.adapters import cayley
from train.adapters.block_product import BlockProduct
from train.adapters.family import Family, Form, State, in_backward, weights, without_autocast
from train.adapters.outermost import Outermost
from train.adapters.siblings import SharedInput, product_dtype


class Rotations(Outermost):
    """The rotations of one adapter, for all its layers; `groups`: of each, its form and its members'
    modules.

    shared: of each group of several members, what was computed for all of them. entered: the modules whose
    call is under way.
    """

    def __init__(self, groups: Sequence[tuple[Form, list[torch.nn.Module]]]) -> None:
        super().__init__()
        keyed: dict[tuple[Form, torch.device], dict[int, list[torch.nn.Module]]] = {}
        for index, (form, members) in enumerate(groups):
            keyed.setdefault((form, weights(members)[0].device), {})[index] = members
        self.families = [Family(form, members) for (form, _), members in keyed.items()]
        self.family_of = {index: family for family in self.families for index in family.groups}
        self.shared = {index: SharedInput() for index, (_, members) in enumerate(groups) if len(members) > 1}
        self.entered: list[torch.nn.Module] = []

    def _enter(self, module: torch.nn.Module, arguments: Any) -> None:
        if module in self.entered:  # left by what hooks do not see, a KeyboardInterrupt: nothing is under way
            self.entered.clear()
        self.entered.append(module)
        if len(self.entered) == 1 and not in_backward():
            for family in self.families:
                family.current(module.training, fresh=True)

    def _leave(self, module: torch.nn.Module, arguments: Any, output: Any) -> None:
        if module in self.entered:
            del self.entered[self.entered.index(module) :]
        if not self.entered:
            for shared in self.shared.values():
                shared.clear()  # a forward that failed halfway leaves its tensors there

    def serves(self, group: int, member: int, module: torch.nn.Module) -> bool:
        """Whether this is the module that a member of a group is computed for."""
        return self.family_of[group].groups[group][member] is module

    def rotate(self, group: int, member: int, x: torch.Tensor, training: bool) -> torch.Tensor:
        """x [..., inputs] turned by the rotation of one member; those of its siblings are made with it."""
        family = self.family_of[group]
        # Called by the model, or again for it in backward, a layer trusts what the model's call found.
        within = bool(self.entered) or in_backward()
        state = family.current(training, group if within else None)

        def turned(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            dtype = product_dtype(x)
            piece = family.piece(group, state, dtype)
            with without_autocast(x):
                return BlockProduct.apply(x.to(dtype), piece)

        if group not in self.shared:
            return turned(x)[0]
        return self.shared[group].part(member, x, state, turned)

    def orthogonality_error(self) -> float:
        """The largest |R R^T - I| over all blocks, of the batch that the last forward used."""
        return self._largest([cayley.orthogonality_error(state.rotations) for state in self._states()])

    def skew_norm(self) -> float:
        """The largest spectral norm of Q over all blocks, of the batch that the last forward used."""
        return self._largest([cayley.spectral_norm(state.skew) for state in self._states()])

    def _states(self) -> list[State]:
        """Of the last forward; of the present parameters where there was none."""
        with torch.no_grad():
            return [family.state or family.current(training=False) for family in self.families]

    def _largest(self, figures: list[torch.Tensor]) -> float:
        return torch.stack([figure.to(figures[0].device) for figure in figures]).max().item()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"entered": []}
