"""Many small parameters put together, scaled and cast in a few launches; their gradients come back so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, groupby
from typing import Any

import torch
from torch.autograd.function import once_differentiable


class Gathered(torch.autograd.Function):
    """Parameters, each times its scaling, as `len(sizes)` tensors of `dtype`: of each group its members' rows
    one after another.

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
        ctx.scalings, ctx.dtype = _grouped(scalings, sizes), parameters[0].dtype
        grouped = _grouped(parameters, sizes)
        ctx.shapes = [[member.shape for member in members] for members in grouped]
        together = torch.cat([parameter.reshape(-1) for parameter in parameters])
        _scale(together, zip(scalings, [parameter.numel() for parameter in parameters], strict=True))
        shapes = [(sum(rows for rows, _ in members), members[0][1]) for members in ctx.shapes]
        parts = together.to(dtype).split([rows * columns for rows, columns in shapes])
        return tuple(part.view(shape) for part, shape in zip(parts, shapes, strict=True))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        returned: list[torch.Tensor | None] = []
        for shapes, gradient in zip(ctx.shapes, _scaled(gradients, ctx), strict=True):
            if gradient is None:
                returned += [None] * len(shapes)
            else:
                returned += gradient.split([rows for rows, _ in shapes])
        return None, None, None, *returned


def _grouped(items: Sequence[Any], sizes: Sequence[int]) -> list[Sequence[Any]]:
    """Items in groups of these sizes."""
    ends = list(accumulate(sizes))
    return [items[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _scaled(gradients: Sequence[torch.Tensor | None], ctx: Any) -> Sequence[torch.Tensor | None]:
    """Gradients of groups times the scalings, in the parameters' dtype and in one memory; as they are where
    that is the same.
    """
    present = [part for part in gradients if part is not None]
    scalings = [
        (scaling, rows * columns)
        for part, *group in zip(gradients, ctx.scalings, ctx.shapes, strict=True)
        if part is not None
        for scaling, (rows, columns) in zip(*group, strict=True)
    ]
    if all(part.dtype == ctx.dtype for part in present) and all(scaling == 1 for scaling, _ in scalings):
        return gradients
    together = torch.cat([part.reshape(-1) for part in present]).to(ctx.dtype)
    _scale(together, scalings)
    parts = iter(together.split([part.numel() for part in present]))
    return [None if part is None else next(parts).view(part.shape) for part in gradients]


def _scale(together: torch.Tensor, scalings: Iterable[tuple[float, int]]) -> None:
    """Multiply, in place, stretches by their scalings, [(scaling, length)]; equal neighbours in one pass."""
    start = 0
    for scaling, stretch in groupby(scalings, key=lambda pair: pair[0]):
        length = sum(length for _, length in stretch)
        if scaling != 1:
            together[start : start + length].mul_(scaling)
        start += length
