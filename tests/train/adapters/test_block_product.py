"""One input times many block-diagonal matrices, against the dense product."""

from __future__ import annotations

import pytest
import torch

from train.adapters.block_product import BlockProduct


def dense(x: torch.Tensor, wide: torch.Tensor) -> list[torch.Tensor]:
    """By a dense matrix of inputs x inputs for each of the k."""
    block = wide.shape[1]
    copies = x.shape[-1] // block if len(wide) == 1 else 1
    matrices = [
        torch.block_diag(*[one[:, start : start + block] for one in wide for _ in range(copies)])
        for start in range(0, wide.shape[2], block)
    ]
    return [x @ matrix for matrix in matrices]


def random(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


# Blocks of the rotation, blocks of the input: one for all, one alone, many.
LAYOUTS = [(1, 4), (1, 1), (4, 4)]


@pytest.mark.parametrize("copies", [1, 2, 3])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows", [(5,), (2, 5), (2, 1, 3), ()])
def test_products_and_gradients_are_those_of_dense_matrices(
    rows: tuple[int, ...], layout: tuple[int, int], copies: int
) -> None:
    x = random(*rows, layout[1] * 3).requires_grad_()
    wide = random(layout[0], 3, copies * 3, seed=1).requires_grad_()
    results, expected = BlockProduct.apply(x, wide), dense(x, wide)
    assert len(results) == copies and all(result.shape == x.shape for result in results)
    weights = [random(*x.shape, seed=index) for index in range(copies)]
    found = [
        torch.autograd.grad(sum((y * w).sum() for y, w in zip(ys, weights, strict=True)), (x, wide))
        for ys in (results, expected)
    ]
    for left, right in zip([*results, *found[0]], [*expected, *found[1]], strict=True):
        assert torch.allclose(left, right, atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_that_do_not_lie_in_a_row_give_the_same(layout: tuple[int, int]) -> None:
    x, wide = random(layout[1] * 3, 7).mT, random(layout[0], 3, 6, seed=1)
    for result, expected in zip(BlockProduct.apply(x, wide), dense(x, wide), strict=True):
        assert torch.allclose(result, expected, atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_result_that_nobody_uses_adds_nothing_to_the_gradients(layout: tuple[int, int]) -> None:
    x = random(5, layout[1] * 3).requires_grad_()
    wide = random(layout[0], 3, 9, seed=1).requires_grad_()
    found = torch.autograd.grad(BlockProduct.apply(x, wide)[1].square().sum(), (x, wide))
    expected = torch.autograd.grad(dense(x, wide)[1].square().sum(), (x, wide))
    assert all(torch.allclose(left, right, atol=1e-12) for left, right in zip(found, expected, strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_only_what_wants_a_gradient_gets_one(layout: tuple[int, int]) -> None:
    x, wide = random(5, layout[1] * 3), random(layout[0], 3, 6, seed=1)
    for leaf in (x, wide):
        leaf.requires_grad_()
        sum(y.sum() for y in BlockProduct.apply(x, wide)).backward()
        assert leaf.grad is not None
        leaf.grad = None
        leaf.requires_grad_(False)
        assert x.grad is None and wide.grad is None


@pytest.mark.parametrize("rows", [(0,), (2, 0)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_rows_are_turned_into_none(rows: tuple[int, ...], layout: tuple[int, int]) -> None:
    x = random(*rows, layout[1] * 3).requires_grad_()
    wide = random(layout[0], 3, 6, seed=1).requires_grad_()
    results = BlockProduct.apply(x, wide)
    assert [result.shape for result in results] == [x.shape] * 2
    sum(result.sum() for result in results).backward()
    assert x.grad.shape == x.shape and not wide.grad.any()


def test_autocast_around_a_backward_leaves_the_dtype_as_it_is() -> None:
    x, wide = random(5, 12, dtype=torch.float32), random(4, 3, 3, dtype=torch.float32, seed=1)
    x.requires_grad_()
    wide.requires_grad_()
    expected = torch.autograd.grad(BlockProduct.apply(x, wide)[0].square().sum(), (x, wide))
    (result,) = BlockProduct.apply(x, wide)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(result.square().sum(), (x, wide))
    assert all(torch.equal(left, right) for left, right in zip(found, expected, strict=True))
