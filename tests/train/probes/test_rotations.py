"""The probe of OFT's rotations: by the device's solver, by products without it, and wrong."""

from __future__ import annotations

import pytest
import torch
from device_faults import Lacking, Losing

from train.adapters import cayley
from train.probes import rotations

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _asked_anew() -> None:
    cayley.has_solver.cache_clear()


def test_a_sound_device_inverts_by_its_solver() -> None:
    assert rotations.method(CPU) == "solver"
    assert rotations.probe(CPU).passed


def test_a_device_without_the_operator_inverts_by_products_and_is_right() -> None:
    with Lacking("linalg_inv_ex"):
        assert rotations.method(CPU) == "products"
        found = rotations.probe(CPU)
    cayley.has_solver.cache_clear()
    assert found.passed, found.words()


def test_wrong_products_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    right = rotations._compute(CPU)
    with Losing(torch.float32, 13):
        wrong = rotations._compute(CPU)
    both = iter([right, wrong])
    monkeypatch.setattr(rotations, "_compute", lambda _: next(both))
    assert not rotations.probe(CPU).passed
