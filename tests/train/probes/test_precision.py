"""The probe of a precision passes on a sound device, and fails on each kind of wrong one with its figures."""

from __future__ import annotations

import pytest
import torch
from device_faults import Lacking, Losing

from train.probes import precision
from train.probes.outcome import TOLERANCES

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp32"])
def test_a_sound_device_is_at_about_one_spacing_of_the_format(name: str) -> None:
    found = precision.probe(name, CPU)
    assert found.passed
    assert max(float(value) for value in found.figures.values()) < TOLERANCES[name] / 2
    assert found.figures.keys() == {"product", "loss", "logits", "gradients"}


@pytest.mark.parametrize(("name", "bits"), [("bf16", 2), ("fp16", 2), ("fp32", 13)])
def test_products_that_lose_bits_fail_with_figures(
    name: str, bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two bits of a 16-bit format; 13 of fp32, which makes it a product of ten bits."""
    right = precision._compute("fp32", CPU)
    with Losing(precision.DTYPES[name], bits):
        wrong = precision._compute(name, CPU)
    both = iter([right, wrong])
    monkeypatch.setattr(precision, "_compute", lambda *_: next(both))
    found = precision.probe(name, CPU)
    assert not found.passed
    assert "apart" in found.words()
    assert found.allowed == TOLERANCES[name]


def test_a_kernel_that_is_not_there_and_memory_that_does_not_suffice_are_failed_candidates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with Lacking("mm"):
        assert precision.probe("bf16", CPU).words() == "NotImplementedError: Could not run 'aten::mm'"

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("out of memory: tried to allocate 2 MiB\nmore words")

    monkeypatch.setattr(precision, "_compute", full)
    found = precision.probe("fp16", CPU)
    assert (found.passed, found.words()) == (
        False,
        "OutOfMemoryError: out of memory: tried to allocate 2 MiB",
    )


def test_a_result_that_is_no_number_fails_and_can_be_written_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    import json

    original = precision._attend
    monkeypatch.setattr(precision, "_attend", lambda *parts: original(*parts) * float("nan"))
    found = precision.probe("bf16", CPU)
    assert not found.passed
    assert found.figures["logits"] == "inf"
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["figures"]["product"] < 0.01


def test_the_probe_draws_from_no_generator_of_the_run() -> None:
    before = torch.random.get_rng_state()
    precision.probe("bf16", CPU)
    assert torch.equal(before, torch.random.get_rng_state())
