"""Many small parameters put together, scaled and cast in a few launches; their gradients come back so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import torch
from torch.autograd.function import once_differentiable


class Gathered(torch.autograd.Function):
    """Parameters as `len(sizes)` tensors of `dtype`: of each group its members' rows one after another, times
    the group's scaling.

    sizes: how many parameters each group has, which have the same number of columns. It saves nothing, so
    that a checkpoint sees no difference between computing it again and not. Groups without a gradient leave
    their parameters without one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        dtype: torch.dtype,
        sizes: Sequence[int],
        scalings: Sequence[float],
        *parameters: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.sizes, ctx.scalings, ctx.dtype = sizes, scalings, parameters[0].dtype
        ctx.rows = [len(parameter) for parameter in parameters]
        together = torch.cat([parameter.reshape(-1) for parameter in parameters])
        shapes, end = [], 0
        for size in sizes:
            members, end = parameters[end : end + size], end + size
            shapes.append((sum(map(len, members)), members[0].shape[1]))
        lengths = [rows * columns for rows, columns in shapes]
        _scale(together, zip(scalings, lengths, strict=True))
        parts = together.to(dtype).split(lengths)
        return tuple(part.view(shape) for part, shape in zip(parts, shapes, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        returned: list[torch.Tensor | None] = []
        for size, gradient in zip(ctx.sizes, _scaled(gradients, ctx.scalings, ctx.dtype), strict=True):
            rows = ctx.rows[len(returned) : len(returned) + size]
            returned += [None] * size if gradient is None else gradient.split(rows)
        return None, None, None, *returned


def _scaled(
    gradients: Sequence[torch.Tensor | None], scalings: Sequence[float], dtype: torch.dtype
) -> Sequence[torch.Tensor | None]:
    """Gradients times their scalings in `dtype`, in one memory; as they are where that is the same."""
    present = [(part, scaling) for part, scaling in zip(gradients, scalings, strict=True) if part is not None]
    if all(part.dtype == dtype and scaling == 1 for part, scaling in present):
        return gradients
    together = torch.cat([part.reshape(-1) for part, _ in present]).to(dtype)
    lengths = [part.numel() for part, _ in present]
    _scale(together, zip([scaling for _, scaling in present], lengths, strict=True))
    parts = iter(together.split(lengths))
    return [None if part is None else next(parts).view(part.shape) for part in gradients]


def _scale(together: torch.Tensor, scalings: Iterable[tuple[float, int]]) -> None:
    """Multiply, in place, stretches by their scalings, [(scaling, length)]; equal neighbours in one pass."""
    start = 0
    for scaling, stretch in groupby(scalings, key=lambda pair: pair[0]):
        length = sum(length for _, length in stretch)
        if scaling != 1:
            together[start : start + length].mul_(scaling)
        start += length
