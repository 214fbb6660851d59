"""PEFT's OFT layer for linear layers, reading its rotation from the model's batch, and merging block by
block. Class, parameters and files stay PEFT's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from peft.tuners.oft.layer import Linear
from peft.tuners.tuners_utils import check_adapters_to_merge

from train.adapters.family import Family, Form
from train.adapters.rotation import Rotations
from train.adapters.siblings import group_siblings

if TYPE_CHECKING:
    from peft import PeftModel

MERGE_BYTES = 32 << 20
"""Weight rows are merged in portions of so many bytes of fp32. A merge holds one portion before and one
after, up to six times the layer's rotations (inputs * block * 4 bytes) while these are made, and in the
host's memory the weight as it was."""


class BatchedLinear(Linear):
    """A linear layer whose input is turned by rotations that were computed for the whole model at once.

    For everything but one active, unmerged adapter it is PEFT's own layer.
    """

    rotations: Rotations
    rotated_adapter: str
    group: int
    member: int
    kept_weights: list[torch.Tensor]

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.disable_adapters or self.merged or not self._is_served():
            return super().forward(x, *args, **kwargs)
        turned = self.rotations.rotate(self.group, self.member, x, self.training)
        return self.base_layer(turned, *args, **kwargs).to(x.dtype)

    def _is_served(self) -> bool:
        """Whether the one active adapter is what the batch was made of: one that was deleted and added again
        has another module.
        """
        adapter = self.rotated_adapter
        return (
            list(self.active_adapters) == [adapter]
            and adapter in self.oft_R
            and self.rotations.serves(self.group, self.member, self.oft_R[adapter])
        )

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """W <- W R^T, in the weight's place and in portions of its rows; R and the products are fp32.

        `safe_merge`: ValueError, with the weight as it was, where the result is not finite.
        """
        if self._is_quantized():
            super().merge(safe_merge, adapter_names)
            return
        for adapter in check_adapters_to_merge(self, adapter_names):
            if adapter not in self.oft_R:
                continue
            base: Any = self.get_base_layer()
            weight = base.weight.data
            kept = weight.to("cpu", copy=True)
            turn_weight(weight, layer_rotations(self, adapter))
            if safe_merge and not torch.isfinite(weight).all():
                weight.copy_(kept)
                raise ValueError(f"adapter {adapter}: the merged weights are not finite")
            self.merged_adapters.append(adapter)
            self.kept_weights.append(kept)

    def unmerge(self) -> None:
        """Put back the weights that were there before the merge, to the last bit: they are kept in the
        host's memory, as rounding cannot be undone by turning back.
        """
        if not self.kept_weights:  # nothing is merged, or PEFT's own layer did it
            super().unmerge()
            return
        base: Any = self.get_base_layer()
        while self.kept_weights:
            self.merged_adapters.pop()
            base.weight.data.copy_(self.kept_weights.pop())
        if self.merged:
            super().unmerge()

    def unload_and_optionally_merge_module(
        self, merge: bool, safe_merge: bool, adapter_names: list[str] | None
    ) -> torch.nn.Module:
        """The layer below, for PEFT to put in this one's place; the model's calls make no rotations then."""
        self.rotations.unhook()
        if merge:
            self.merge(safe_merge, adapter_names)
            self.kept_weights.clear()  # nothing will be unmerged
        return self.get_base_layer()

    def _is_quantized(self) -> bool:
        return getattr(self, "quantization_backend", None) is not None


def form_of(layer: Any, adapter: str) -> Form:
    """The form of a PEFT layer's rotation."""
    module = layer.oft_R[adapter]
    return Form(
        block=module.block_size,
        num_terms=module.num_cayley_neumann_terms if module.use_cayley_neumann else None,
        eps=module.eps if module.coft else None,
        shared=module.block_share,
        dropout=getattr(layer.oft_dropout[adapter], "p", 0.0),
    )


def layer_rotations(layer: Any, adapter: str) -> torch.Tensor:
    """R [blocks, b, b] of one layer, fp32, computed for it alone; one block where all share it."""
    with torch.no_grad():
        family = Family(form_of(layer, adapter), {0: [layer.oft_R[adapter]]})
        return family.current(training=False).rotations


def turn_weight(weight: torch.Tensor, rotations: torch.Tensor) -> None:
    """W [outputs, inputs] <- W R^T in place, R block-diagonal from [blocks, b, b] fp32 (or one block for
    all). No matrix of inputs x inputs: beside W two portions of MERGE_BYTES, or of one row where that is
    more.
    """
    block, inputs = rotations.shape[-1], weight.shape[1]
    blocks = rotations.expand(inputs // block, block, block).mT
    for portion in weight.split(max(1, MERGE_BYTES // (4 * inputs))):
        portion.view(len(portion), -1, block).copy_(_turned(portion, blocks))


def _turned(rows: torch.Tensor, blocks: torch.Tensor) -> torch.Tensor:
    """Rows [n, inputs] of a weight by blocks [inputs / b, b, b], fp32 [n, inputs / b, b]."""
    by_block = rows.to(torch.float32).view(len(rows), len(blocks), -1).transpose(0, 1)
    return torch.bmm(by_block, blocks).transpose(0, 1)


def batched(model: PeftModel) -> PeftModel:
    """The same model with PEFT's linear OFT layers reading from one batch of rotations.

    Layers of other kinds (Conv2d, Embedding) stay PEFT's. Nothing changes but the way of computing.
    """
    adapter = model.active_adapter
    layers: dict[str, Any] = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, Linear) and adapter in module.oft_R
    }
    if not layers:
        return model
    if before := rotations_of(model):
        before.unhook()

    def alike(layer: Any) -> object:
        return form_of(layer, adapter), layer.in_features, layer.oft_R[adapter].weight.device

    groups = group_siblings(layers, alike)
    rotations = Rotations(
        [(form_of(members[0], adapter), [member.oft_R[adapter] for member in members]) for members in groups]
    )
    for index, members in enumerate(groups):
        for position, layer in enumerate(members):
            kept = layer.kept_weights if isinstance(layer, BatchedLinear) else []
            layer.__class__ = BatchedLinear
            layer.rotations, layer.rotated_adapter, layer.kept_weights = rotations, adapter, kept
            layer.group, layer.member = index, position
    rotations.hook(model, layers)
    return model


def rotations_of(model: torch.nn.Module) -> Rotations | None:
    """The batch that a model's layers read from; None where there is none."""
    return next((layer.rotations for layer in model.modules() if isinstance(layer, BatchedLinear)), None)
