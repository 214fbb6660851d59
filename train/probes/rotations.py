"""Whether a device makes OFT's rotations: the exact Cayley map of a batch of blocks, forward and backward."""

from __future__ import annotations

import torch

from train.adapters import cayley
from train.probes.outcome import TOLERANCES, Outcome, distance, measure

BLOCK, NUM_BLOCKS = 32, 8


def probe(device: torch.device) -> Outcome:
    """Compare the map on `device`, always in fp32, with that on the CPU. How the device inverts is decided by
    `cayley.has_solver`.
    """

    def distances() -> dict[str, float]:
        wanted, found = _compute(torch.device("cpu")), _compute(device)
        names = ("rotations", "gradients")
        return {name: distance(*pair) for name, *pair in zip(names, found, wanted, strict=True)}

    return measure("rotations", TOLERANCES["fp32"], distances)


def method(device: torch.device) -> str:
    """How the inverse comes about: `solver` (torch.linalg's), or `products` where the device lacks it."""
    return "solver" if cayley.has_solver(device) else "products"


def _compute(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(2)
    vectors = 0.1 * torch.randn(NUM_BLOCKS, BLOCK * (BLOCK - 1) // 2, generator=draw)
    weights = torch.randn(NUM_BLOCKS, BLOCK, BLOCK, generator=draw).to(device)
    vectors = vectors.to(device).requires_grad_()
    rotations = cayley.exact(cayley.skew_matrices(vectors, BLOCK))
    (gradients,) = torch.autograd.grad((rotations * weights).sum(), vectors)
    return rotations, gradients
