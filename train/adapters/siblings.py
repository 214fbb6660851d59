"""Layers that read the same input: found by name, and served by one computation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

SAME_INPUT = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("in_proj_qkvz", "in_proj_ba"),
    ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a"),
)
"""Names under one parent whose layers get the same tensor in Qwen's attention, linear attention and MLP.
Only a hint to what is worth computing together: each call compares the tensors themselves."""


def group_siblings(layers: dict[str, Any], alike: Callable[[Any], object]) -> list[list[Any]]:
    """Layers by full name, as lists of those that can share a computation: one parent, names of one row of
    SAME_INPUT, and equal `alike(layer)`. Every layer is in exactly one list; the order is that of `layers`.
    """
    groups: dict[object, list[Any]] = {}
    for name, layer in layers.items():
        parent, _, last = name.rpartition(".")
        row = next((row for row in SAME_INPUT if last in row), None)
        key = (parent, row, alike(layer)) if row else name
        groups.setdefault(key, []).append(layer)
    return list(groups.values())


class SharedInput:
    """What was computed for all members of a group from one input tensor, until each has taken its part.

    The input is held, so that no other tensor can take its identity; a change in place, another state of the
    weights (`stamp`) or of gradient recording makes it another input.
    """

    def __init__(self) -> None:
        # Key and parts are one object: a call in another thread puts another in its place, never half of one.
        self._held: tuple[tuple[Any, ...], dict[int, torch.Tensor]] | None = None

    def part(
        self,
        member: int,
        inputs: torch.Tensor,
        stamp: object,
        compute: Callable[[torch.Tensor], Sequence[torch.Tensor]],
    ) -> torch.Tensor:
        """The part of one member; the first to ask computes those of all."""
        key = (inputs, stamp, _version(inputs), torch.is_grad_enabled(), product_dtype(inputs))
        held = self._held
        if held is None or member not in held[1] or not _same(key, held[0]):
            held = self._held = key, dict(enumerate(compute(inputs)))
        taken = held[1].pop(member)
        if not held[1]:
            self._held = None
        return taken

    def clear(self) -> None:
        """Let go of the input and of the parts that nobody took."""
        self._held = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_held": None}  # a graph cannot be copied


def _same(left: tuple[Any, ...], right: tuple[Any, ...]) -> bool:
    """By identity for the tensor and the stamp, by value for the rest."""
    return left[0] is right[0] and left[1] is right[1] and left[2:] == right[2:]


def _version(tensor: torch.Tensor) -> int:
    """A count of the changes in place; tensors of inference mode keep none."""
    return -1 if tensor.is_inference() else tensor._version


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """The dtype that autocast gives to products on a device type; None where it is off."""
    return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else None


def product_dtype(tensor: torch.Tensor) -> torch.dtype:
    """The dtype in which a linear layer would take this input."""
    return autocast_dtype(tensor.device.type) or tensor.dtype


def versions(tensors: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """What tells whether tensors are still those that were seen: place in memory and changes in place."""
    return [(tensor.data_ptr(), _version(tensor)) for tensor in tensors]
