"""The maps from skew-symmetric matrices to rotations, against PEFT's and against exact arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from oft_twins import gap, gradients, loss_of, twins
from peft.tuners.oft.layer import OFTRotationModule

from train.adapters import cayley


def peft_map(vectors: torch.Tensor, block: int, num_terms: int | None) -> torch.Tensor:
    module = OFTRotationModule(len(vectors), vectors.shape[1], block, block * len(vectors))
    return module._cayley_batch(vectors, block, num_terms is not None, num_terms or 5)


def our_map(vectors: torch.Tensor, block: int, num_terms: int | None) -> torch.Tensor:
    skew = cayley.skew_matrices(vectors, block)
    return cayley.exact(skew) if num_terms is None else cayley.series(skew, num_terms)


def random_vectors(count: int, block: int, norm: float, seed: int = 0) -> torch.Tensor:
    """Of skew-symmetric matrices whose largest spectral norm is `norm`."""
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.randn(count, block * (block - 1) // 2, generator=generator)
    norms = torch.linalg.matrix_norm(cayley.skew_matrices(vectors, block), 2)
    return vectors * (norm / norms.max())


@pytest.fixture
def forgetful_probe() -> Iterator[None]:
    """Whether a device has a solver is asked anew, before and after."""
    cayley.has_solver.cache_clear()
    yield
    cayley.has_solver.cache_clear()


@pytest.mark.parametrize("num_terms", [None, 2, 3, 4, 5, 6, 7, 8])
@pytest.mark.parametrize("block", [2, 5, 32])
def test_rotations_and_gradients_are_those_of_peft(block: int, num_terms: int | None) -> None:
    vectors = random_vectors(3, block, 0.4)
    weight = torch.randn(3, block, block, generator=torch.Generator().manual_seed(1))
    results = []
    for function in (peft_map, our_map):
        leaf = vectors.clone().requires_grad_()
        rotations = function(leaf, block, num_terms)
        (rotations * weight).sum().backward()
        results.append((rotations.detach(), leaf.grad))
    assert (results[0][0] - results[1][0]).abs().max() < 1e-6
    assert results[0][1].abs().max() > 0.5
    assert (results[0][1] - results[1][1]).abs().max() < 1e-6 * max(1.0, results[0][1].abs().max().item())


def test_the_gradient_of_the_exact_map_is_that_of_finite_differences() -> None:
    skew = cayley.skew_matrices(random_vectors(2, 5, 2.0), 5).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda q: cayley.exact(q - q.mT), (skew,))


def test_the_exact_map_is_the_transpose_of_the_series_limit() -> None:
    skew = cayley.skew_matrices(random_vectors(2, 8, 0.3), 8)
    limit = cayley.series(skew, 40)
    assert (cayley.exact(skew).mT - limit).abs().max() < 1e-6
    assert (cayley.exact(-skew) - limit).abs().max() < 1e-6
    assert (cayley.exact(skew) - limit).abs().max() > 0.1


@pytest.mark.parametrize("block", [16, 32, 64, 128])
@pytest.mark.parametrize("norm", [0.1, 1.0, 10.0, 100.0])
def test_the_exact_map_is_orthogonal_at_any_norm(block: int, norm: float) -> None:
    rotations = cayley.exact(cayley.skew_matrices(random_vectors(4, block, norm), block))
    assert cayley.orthogonality_error(rotations) < 1e-5


@pytest.mark.parametrize("norm", [1e-3, 1.0, 4.0])
@pytest.mark.parametrize("block", [18, 32, 34, 36, 64, 96, 128])
def test_halves_invert_as_the_solver_does(block: int, norm: float) -> None:
    matrices = torch.eye(block) + cayley.skew_matrices(random_vectors(4, block, norm), block)
    expected = torch.linalg.inv(matrices.double())
    solved = torch.linalg.inv_ex(matrices).inverse
    error = (cayley.inverse_by_halves(matrices) - expected).abs().max()
    assert error < 1e-6 and error < 2 * (solved - expected).abs().max() + 2e-7


@pytest.mark.parametrize(("norm", "sizes"), [(1.0, {16}), (100.0, {64})])
def test_large_rotations_go_to_the_solver_whole(
    monkeypatch: pytest.MonkeyPatch, norm: float, sizes: set[int]
) -> None:
    solver, seen = torch.linalg.inv_ex, set()
    monkeypatch.setattr(torch.linalg, "inv_ex", lambda a: seen.add(a.shape[-1]) or solver(a))
    cayley.inverse(torch.eye(64) + cayley.skew_matrices(random_vectors(4, 64, norm), 64))
    assert seen == sizes


@pytest.mark.parametrize("norm", [1e-3, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("block", [2, 7, 32])
def test_products_invert_as_the_solver_does(block: int, norm: float) -> None:
    matrices = torch.eye(block) + cayley.skew_matrices(random_vectors(4, block, norm), block)
    expected = torch.linalg.inv(matrices.double())
    assert (cayley.inverse_by_products(matrices) - expected).abs().max() < 1e-5


def no_solver(*arguments: Any, **named: Any) -> Any:
    raise NotImplementedError("not for this device")


def wrong_solver(matrices: torch.Tensor) -> Any:
    return torch.return_types.linalg_inv_ex((matrices.mT, torch.zeros(len(matrices), dtype=torch.int32)))


@pytest.mark.parametrize("solver", [no_solver, wrong_solver])
def test_a_device_without_a_solver_trains_alike(
    monkeypatch: pytest.MonkeyPatch, forgetful_probe: None, solver: Callable[..., Any]
) -> None:
    plain, ours = twins(std=0.3)
    loss_of(plain).backward()
    with monkeypatch.context() as patch:
        patch.setattr(torch.linalg, "inv_ex", solver)
        assert not cayley.has_solver(torch.device("cpu"))
        loss_of(ours).backward()
    assert gap(gradients(plain), gradients(ours)) < 1e-6


def test_this_device_has_a_solver(forgetful_probe: None) -> None:
    assert cayley.has_solver(torch.device("cpu"))


@pytest.mark.parametrize("block", [2, 3, 8, 32, 63])
@pytest.mark.parametrize("norm", [1e-6, 0.5, 30.0])
def test_the_spectral_norm_keeps_its_bounds(block: int, norm: float) -> None:
    skew = cayley.skew_matrices(random_vectors(5, block, norm, seed=block), block)
    skew[1:] *= 1e-4  # blocks that hardly turn take no part in the largest norm
    true = torch.linalg.matrix_norm(skew.double(), 2).max().item()
    found = cayley.spectral_norm(skew).item()
    assert true * (1 - 1e-5) <= found <= true * (block / 2) ** (1 / 128) * (1 + 1e-5)


def test_the_spectral_norm_bound_is_reached_where_all_singular_values_are_equal() -> None:
    skew = torch.block_diag(*[torch.tensor([[0.0, 0.7], [-0.7, 0.0]])] * 16)[None]
    assert cayley.spectral_norm(skew).item() == pytest.approx(0.7 * 16 ** (1 / 128), rel=1e-5)


def test_the_spectral_norm_of_a_single_pair_and_of_nothing() -> None:
    assert cayley.spectral_norm(torch.tensor([[[0.0, -0.3], [0.3, 0.0]]])).item() == pytest.approx(0.3)
    assert cayley.spectral_norm(torch.zeros(3, 4, 4)).item() < 1e-30
    assert cayley.spectral_norm(torch.full((1, 2, 2), torch.nan)).isnan()


def test_the_orthogonality_error_is_the_largest_entry_of_any_block() -> None:
    rotations = torch.eye(4).repeat(3, 1, 1)
    assert cayley.orthogonality_error(rotations) == 0
    assert cayley.orthogonality_error(rotations * 0.9).item() == pytest.approx(0.19, abs=1e-6)
    rotations[1] *= 1.1
    assert cayley.orthogonality_error(rotations).item() == pytest.approx(0.21, abs=1e-6)
    rotations[2, 0, 1] = 0.5
    expected = (rotations @ rotations.mT - torch.eye(4)).abs().max().item()
    assert cayley.orthogonality_error(rotations).item() == pytest.approx(expected) and expected > 0.21


def test_the_orthogonality_error_of_the_series_is_what_its_norm_says() -> None:
    skew = cayley.skew_matrices(random_vectors(4, 8, 0.5), 8)
    error = cayley.orthogonality_error(cayley.series(skew, 5)).item()
    assert 0 < error <= 1 - (1 - 0.5**4) ** 2 + 1e-6


def test_an_operator_that_torch_computes_on_the_cpu_is_none_of_the_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = torch.device("privateuseone")
    assert not cayley.has_kernel(other, "aten::linalg_inv_ex", "aten::linalg_inv_ex.inverse")
    library = torch.library.Library("aten", "IMPL")
    library.impl("linalg_inv_ex.inverse", lambda *given, **named: None, "PrivateUse1")
    assert cayley.has_kernel(other, "aten::linalg_inv_ex", "aten::linalg_inv_ex.inverse")
    del library
    assert cayley.has_kernel(torch.device("cpu"), "aten::linalg_inv_ex")
