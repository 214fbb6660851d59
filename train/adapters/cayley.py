"""From skew-symmetric matrices to rotations: the exact Cayley map and its Neumann series, for many
blocks in one batch, and how far a rotation is from being one.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch.autograd.function import once_differentiable

NEWTON_STEPS = 24
"""Products that the inverse takes where a device has no solver. The error of a step is the square of the
last one's; it starts near 1 - 1 / norm(Q)^2, so norms up to a few hundred come out exact in fp32."""
SMALLEST_HALF = 16
"""Blocks up to this size go to LAPACK whole, one after the other; larger ones are inverted by halves."""
BOUND_BY_HALVES = 16.0
"""Of norm_F(Q) / sqrt(2), which no spectral norm exceeds. Without pivots the error grows with the norm: up to
here it is the solver's own, at 100 it is ten times that."""
SQUARINGS = 6
"""Of Q^T Q, for its spectral norm: leaves a relative error of (block / 2) ** (1 / 128) - 1, 2 % at 32."""


@lru_cache(maxsize=64)
def _tables(block: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What leads from a vector to its matrix and back: for each entry of the flat matrix the place in the
    vector (int64 [block * block]) and the sign (fp32, 0 on the diagonal); for each entry of the vector its
    place in the flat matrix (int64 [block * (block - 1) / 2]).
    """
    rows, columns = torch.triu_indices(block, block, 1)
    places = torch.zeros(block, block, dtype=torch.int64)
    places[rows, columns] = places[columns, rows] = torch.arange(len(rows))
    signs = torch.zeros(block, block)
    signs[rows, columns] = 1.0
    signs[columns, rows] = -1.0
    return places.flatten().to(device), signs.flatten().to(device), (rows * block + columns).to(device)


class _Skew(torch.autograd.Function):
    """Vectors of the entries above the diagonal, row by row, to skew-symmetric matrices."""

    @staticmethod
    def forward(ctx: Any, vectors: torch.Tensor, block: int) -> torch.Tensor:
        places, signs, _ = _tables(block, vectors.device)
        ctx.block = block
        return vectors.index_select(1, places).mul_(signs).view(-1, block, block)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        _, _, upper = _tables(ctx.block, gradient.device)
        return (gradient - gradient.mT).flatten(1).index_select(1, upper), None


class _Exact(torch.autograd.Function):
    """Q to R = (I - Q)(I + Q)^-1 = 2 (I + Q)^-1 - I.

    The inverse is (R + I) / 2: backward needs nothing but R.
    """

    @staticmethod
    def forward(ctx: Any, skew: torch.Tensor) -> torch.Tensor:
        shifted = skew.clone()
        shifted.diagonal(dim1=-2, dim2=-1).add_(1.0)
        rotation = inverse(shifted).mul_(2.0)
        rotation.diagonal(dim1=-2, dim2=-1).sub_(1.0)
        ctx.save_for_backward(rotation)
        return rotation

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (rotation,) = ctx.saved_tensors
        turned = torch.baddbmm(gradient, rotation.mT, gradient)  # (R + I)^T G
        return torch.baddbmm(turned, turned, rotation.mT, beta=-0.5, alpha=-0.5)


def skew_matrices(vectors: torch.Tensor, block: int) -> torch.Tensor:
    """fp32 [n, block (block - 1) / 2] to [n, block, block], the order of the entries as PEFT has it."""
    return _Skew.apply(vectors, block)


def exact(skew: torch.Tensor) -> torch.Tensor:
    """(I - Q)(I + Q)^-1 for skew-symmetric Q [n, b, b], fp32: PEFT's map with `use_cayley_neumann` off.

    Orthogonal at any norm of Q (arXiv 2306.07280, section 4).
    """
    return _Exact.apply(skew)


def series(skew: torch.Tensor, num_terms: int) -> torch.Tensor:
    """The Cayley-Neumann series I + 2 Q + 2 Q^2 + ... + Q^(num_terms - 1), as PEFT cuts it
    (arXiv 2506.19847, section 4): near (I + Q)(I - Q)^-1, the transpose of `exact`, while norm(Q) is well
    below 1.
    """
    rotation = torch.eye(skew.shape[-1], device=skew.device, dtype=skew.dtype).expand_as(skew)
    if num_terms < 2:
        return rotation.clone()
    rotation = torch.add(rotation, skew, alpha=2.0)
    if num_terms < 3:
        return rotation
    power = torch.bmm(skew, skew)
    rotation = torch.add(rotation, power, alpha=2.0)
    for _ in range(3, num_terms - 1):
        power = torch.bmm(power, skew)
        rotation = torch.add(rotation, power, alpha=2.0)
    return rotation + torch.bmm(power, skew)


def inverse(matrices: torch.Tensor) -> torch.Tensor:
    """The inverses of I + Q [n, b, b], fp32: by the device's solver where it has one, else by products."""
    if not has_solver(matrices.device):
        return inverse_by_products(matrices)
    # LAPACK takes one block after the other; a device's own solver takes the batch, and to ask for the norms
    # would make it wait.
    is_lapack = matrices.device.type == "cpu" and matrices.shape[-1] > SMALLEST_HALF
    if is_lapack and float(_squared_bound(matrices).amax()) <= 1 + BOUND_BY_HALVES**2:
        return inverse_by_halves(matrices)
    return torch.linalg.inv_ex(matrices).inverse


def inverse_by_halves(matrices: torch.Tensor) -> torch.Tensor:
    """The inverses of matrices [n, b, b] whose symmetric part is I, by block elimination without pivots.

    Elimination keeps the symmetric part at least I: every leading block can be inverted (Golub and Van Loan,
    Matrix Computations, section 4.1). Half of LAPACK's time at b = 32 to 128 on one core.
    """
    block = matrices.shape[-1]
    if block <= SMALLEST_HALF or block % 2:
        return torch.linalg.inv_ex(matrices).inverse
    half = block // 2
    (first, right), (left, last) = (rows.split(half, -1) for rows in matrices.split(half, -2))
    first = inverse_by_halves(first.contiguous())
    left, right = torch.bmm(left, first), torch.bmm(first, right)
    last = inverse_by_halves(torch.baddbmm(last, left, matrices[:, :half, half:], alpha=-1))
    below = torch.bmm(last, left)
    found = torch.empty_like(matrices)
    found[:, half:, half:] = last
    torch.neg(below, out=found[:, half:, :half])
    found[:, :half, half:] = torch.bmm(right, last).neg_()
    found[:, :half, :half] = torch.baddbmm(first, right, below)
    return found


def has_kernel(device: torch.device, *names: str) -> bool:
    """Whether one of torch's operators of these names computes on the device itself.

    Where none does, torch may compute it on the CPU without a word: a copy there and back in each call.
    """
    if device.type in ("cpu", "cuda"):
        return True
    try:
        key = torch._C._dispatch_key_for_device(device.type)
        return any(torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for name in names)
    except (AttributeError, RuntimeError):  # not torch's public interface
        return False


@lru_cache(maxsize=8)
def has_solver(device: torch.device) -> bool:
    """Whether the device itself inverts a batch of small matrices, and gets it right."""
    if not has_kernel(device, "aten::linalg_inv_ex", "aten::linalg_inv_ex.inverse"):
        return False
    matrices = torch.tensor([[[1.0, 2.0], [-2.0, 1.0]], [[1.0, -0.5], [0.5, 1.0]]], device=device)
    try:
        inverted = torch.linalg.inv_ex(matrices).inverse
    except (RuntimeError, NotImplementedError):
        return False
    identity = torch.eye(2, device=device)
    return bool(((inverted @ matrices - identity).abs() < 1e-5).all())


def inverse_by_products(matrices: torch.Tensor) -> torch.Tensor:
    """The inverses of I + Q by Newton's iteration X <- 2 X - X A X, from A^T / norm(A)^2.

    I + Q is normal, and the bound 1 + norm_F(Q)^2 / 2 on its squared norm holds as the singular values of a
    skew-symmetric matrix come in pairs: the iteration converges for every Q.
    """
    inverted = matrices.mT / _squared_bound(matrices)
    for _ in range(NEWTON_STEPS):
        inverted = torch.baddbmm(inverted, inverted, torch.bmm(matrices, inverted), beta=2.0, alpha=-1.0)
    return inverted


def _squared_bound(matrices: torch.Tensor) -> torch.Tensor:
    """1 + norm_F(Q)^2 / 2 of I + Q [n, b, b], at least the square of its norm; [n, 1, 1]."""
    # The diagonal of I + Q is all ones, so its squares add up to the block size.
    squares = torch.linalg.matrix_norm(matrices, keepdim=True).square()
    return 1 + (squares - matrices.shape[-1]) / 2


def orthogonality_error(rotations: torch.Tensor) -> torch.Tensor:
    """The largest entry of |R R^T - I| over all R [n, b, b]; a scalar tensor."""
    product = torch.bmm(rotations, rotations.mT)
    product.diagonal(dim1=-2, dim2=-1).sub_(1.0)
    return product.abs_().max()


def spectral_norm(skew: torch.Tensor) -> torch.Tensor:
    """The largest spectral norm over all Q [n, b, b]; a scalar tensor, never below the true one and at most
    (b / 2) ** (1 / 128) times it.

    trace((Q^T Q)^64) = the sum of the 128th powers of the singular values, which come in pairs.
    """
    scale = skew.abs().amax().clamp_min(torch.finfo(skew.dtype).tiny)
    unit = skew / scale
    power = torch.bmm(unit.mT, unit)
    logarithm = torch.zeros(len(skew), device=skew.device, dtype=skew.dtype)
    for step in range(SQUARINGS):
        size = power.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(torch.finfo(skew.dtype).tiny)
        logarithm = logarithm + size.log() / 2**step
        power = power / size[:, None, None]
        power = torch.bmm(power, power)
    trace = power.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(torch.finfo(skew.dtype).tiny)
    logarithm = logarithm + (trace / 2).log() / 2**SQUARINGS
    return scale * (logarithm.max() / 2).exp()
