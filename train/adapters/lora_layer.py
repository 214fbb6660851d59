"""PEFT's LoRA layer for linear layers, with factors that are put together once for the whole model and one
product for all layers that read one input. Class, parameters, merging and files stay PEFT's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from peft.tuners.lora.layer import Linear

from train.adapters.family import in_backward
from train.adapters.gathered import Gathered
from train.adapters.outermost import Outermost
from train.adapters.siblings import SharedInput, group_siblings, product_dtype

if TYPE_CHECKING:
    from peft import PeftModel

Made = tuple[Sequence[torch.Tensor], list[list[torch.Tensor]]]
"""Of each group its members' scaled A, one after another [sum of ranks, inputs], and the members' B."""


class BatchedLinear(Linear):
    """A linear layer whose product with the scaled A is made together with its siblings', and whose product
    with B is added to its output in the same operator.

    For everything but one active, unmerged adapter without dropout, bias and variants it is PEFT's layer.
    """

    factors: Factors
    batched_adapter: str
    group: int
    member: int

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if args or kwargs or not self.is_plain():
            return super().forward(x, *args, **kwargs)
        if not torch.is_grad_enabled():
            dtype = product_dtype(x)
            down, up = (weight.to(dtype) for weight in (self.down(), self.up()))
            return _added(self.base_layer(x), _low(x, down), up, self.scaling[self.batched_adapter])
        if not self.factors.covers():
            return super().forward(x)
        low, up = self.factors.parts(self.group, self.member, x)
        return _added(self.base_layer(x), low, up)

    def is_plain(self) -> bool:
        """Whether base(x) + scaling (x A^T) B^T is all that is asked for."""
        adapter = self.batched_adapter
        if self.disable_adapters or self.merged_adapters or list(self.active_adapters) != [adapter]:
            return False
        if adapter in self.lora_variant or self.lora_bias[adapter] or not self.cast_input_dtype_enabled:
            return False
        dropout = self.lora_dropout[adapter]
        return not (dropout.training and getattr(dropout, "p", 0.0) > 0)

    def down(self) -> torch.Tensor:
        """A [rank, inputs]."""
        return self._weight("lora_A")

    def up(self) -> torch.Tensor:
        """B [outputs, rank]."""
        return self._weight("lora_B")

    def _weight(self, name: str) -> Any:
        return getattr(self, name)[self.batched_adapter].weight


class Factors(Outermost):
    """A and B of all layers of a model, put together and cast once per call of the model.

    groups: layers that read the same input. made: by dtype, what their weights are in this call.
    inside: whether the last layer that was called with gradients was called by the model, and not by itself:
    a checkpoint then computes it again in the same way.
    """

    def __init__(self, groups: list[list[BatchedLinear]]) -> None:
        super().__init__()
        self.groups = groups
        self.shared = [SharedInput() for _ in groups]
        self.recording = self.inside = False
        self.made: dict[torch.dtype, Made] = {}

    def begin(self, module: torch.nn.Module) -> None:
        """Forget what was made of the weights as they were; a call without gradients uses none of it.

        Whether they changed is not asked: fused optimizers, and whoever writes to `.data`, leave no trace.
        """
        if not in_backward():
            self.recording = torch.is_grad_enabled()
            if self.recording:
                self.inside, self.made = True, {}

    def end(self) -> None:
        """Let go of what nobody took: a forward that failed halfway leaves its tensors."""
        for shared in self.shared:
            shared.clear()

    def covers(self) -> bool:
        """Whether the layer that asks was called by the model, or is computed again for it in backward."""
        if not in_backward():
            self.inside = self.recording and bool(self.entered)
        return self.inside

    def parts(self, group: int, member: int, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """x A^T [rows, rank] of a member, scaled, made with its siblings', and its B [outputs, rank]."""
        dtype = product_dtype(x)
        if dtype not in self.made:
            self.made[dtype] = self._gather(dtype)
        downs, ups = self.made[dtype]
        ranks = [up.shape[1] for up in ups[group]]

        def lows(x: torch.Tensor) -> Sequence[torch.Tensor]:
            low = _low(x, downs[group])
            return [low] if len(ranks) == 1 else low.split(ranks, 1)

        return self.shared[group].part(member, x, self.made, lows), ups[group][member]

    def _gather(self, dtype: torch.dtype) -> Made:
        layers = [layer for members in self.groups for layer in members]
        sizes = [len(members) for members in self.groups]
        # The scalings are A's, which is put together in any case; B is taken as it is where it can be.
        scalings = [layer.scaling[layer.batched_adapter] for layer in layers]
        downs = Gathered.apply(dtype, sizes, scalings, *[layer.down() for layer in layers])
        ups = [layer.up() for layer in layers]
        if any(up.dtype != dtype for up in ups):
            ups = Gathered.apply(dtype, [1] * len(ups), [1.0] * len(ups), *ups)
        remaining = iter(ups)
        return downs, [[next(remaining) for _ in range(size)] for size in sizes]

    def __getstate__(self) -> dict[str, Any]:
        # A graph cannot be copied, and is made anew when asked for; no call of the copy is under way.
        return self.__dict__ | {"made": {}, "entered": [], "inside": False}


def _low(x: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """x [..., inputs] times A^T, as [rows, rank]."""
    return torch.mm(x.reshape(-1, x.shape[-1]).to(down.dtype), down.T)


def _added(base: torch.Tensor, low: torch.Tensor, up: torch.Tensor, scaling: float = 1.0) -> torch.Tensor:
    """base [..., outputs] + scaling low [rows, rank] B^T, in the dtype of base."""
    if base.dtype != low.dtype:
        return (base + torch.mm(low, up.T).mul(scaling).view(base.shape)).to(base.dtype)
    return torch.addmm(base.reshape(-1, base.shape[-1]), low, up.T, alpha=scaling).view(base.shape)


def batched(model: PeftModel) -> PeftModel:
    """The same model with PEFT's linear LoRA layers computed with their siblings.

    Layers of other kinds (embeddings, convolutions, quantized) stay PEFT's, and all do where the model is
    spread over several devices. Nothing changes but the way of computing.
    """
    adapter = model.active_adapter
    layers: dict[str, Any] = {
        name: module
        for name, module in model.named_modules()
        if type(module) in {Linear, BatchedLinear} and adapter in module.lora_A
    }
    if len({layer.lora_A[adapter].weight.device for layer in layers.values()}) != 1:
        return model
    if before := factors_of(model):
        before.unhook()
    groups = group_siblings(layers, lambda layer: layer.in_features)
    factors = Factors(groups)
    for index, members in enumerate(groups):
        for position, layer in enumerate(members):
            layer.__class__ = BatchedLinear
            layer.factors, layer.batched_adapter = factors, adapter
            layer.group, layer.member = index, position
    factors.hook(model, layers)
    return model


def factors_of(model: torch.nn.Module) -> Factors | None:
    """What a model's layers share; None where there is nothing."""
    return next((layer.factors for layer in model.modules() if isinstance(layer, BatchedLinear)), None)
