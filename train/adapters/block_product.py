"""One input times the block-diagonal matrices of all layers that read it, in one batched product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import once_differentiable


class BlockProduct(torch.autograd.Function):
    """x [..., inputs] by k block-diagonal rotations at once: k results of x's shape.

    `wide` is [blocks, b, k * b]: the k rotations of each block side by side; one block where all blocks of
    a layer share theirs. The product is in the dtype of x, with the accumulation that the device gives it.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, wide: torch.Tensor) -> tuple[torch.Tensor, ...]:
        block, copies = wide.shape[1], wide.shape[2] // wide.shape[1]
        ctx.save_for_backward(x, wide)
        if len(wide) == 1:
            turned = torch.mm(x.reshape(-1, block), wide[0]).view(-1, x.shape[-1] // block, copies, block)
            turned = turned.permute(2, 0, 1, 3)
        else:
            turned = torch.bmm(_by_block(x, block), wide).view(len(wide), -1, copies, block)
            turned = turned.permute(2, 1, 0, 3)
        return tuple(turned.contiguous().view(copies, *x.shape).unbind(0))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        x, wide = ctx.saved_tensors
        block, shape = wide.shape[1], x.shape
        with torch.autocast(x.device.type, enabled=False):
            if len(wide) == 1:
                rows, gradient = x.reshape(1, -1, block), _side_by_side(gradients, block).flatten(0, 1)[None]
            else:
                rows, gradient = _by_block(x, block), _side_by_side(gradients, block).transpose(0, 1)
            for_x = for_wide = None
            if ctx.needs_input_grad[0]:
                turned_back = torch.bmm(gradient, wide.mT)
                if len(wide) > 1:
                    turned_back = turned_back.transpose(0, 1)
                for_x = turned_back.reshape(shape)
            if ctx.needs_input_grad[1]:
                for_wide = torch.bmm(rows.mT, gradient)
        return for_x, for_wide


def _by_block(x: torch.Tensor, block: int) -> torch.Tensor:
    """[..., blocks * b] as a view [blocks, rows, b]."""
    return x.reshape(-1, x.shape[-1] // block, block).transpose(0, 1)


def _side_by_side(gradients: Sequence[torch.Tensor], block: int) -> torch.Tensor:
    """k of [..., blocks * b] as [rows, blocks, k * b]."""
    parts = [gradient.reshape(-1, gradient.shape[-1] // block, block) for gradient in gradients]
    return parts[0] if len(parts) == 1 else torch.cat(parts, -1)
