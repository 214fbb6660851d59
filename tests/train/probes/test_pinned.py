"""The probe of pinned memory runs in a process of its own: what happens there hurts nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from train.probes import pinned


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module that the process imports first, as if it were torch."""
    path = tmp_path / "torch.py"
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return path


def test_a_process_that_hangs_is_ended_at_its_limit(child: Path) -> None:
    child.write_text("import time\ntime.sleep(60)\n")
    found = pinned.probe("cuda:0", limit_seconds=0.5)
    assert (found.passed, found.words()) == (False, "no answer within 0.5 s")
    assert found.seconds < 10


def test_a_process_that_crashes_is_told_by_its_signal(child: Path) -> None:
    child.write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    assert pinned.probe("cuda:0").words() == "the process ended by SIGSEGV"


def test_a_fault_in_the_process_is_told_in_its_words(child: Path) -> None:
    child.write_text("raise RuntimeError('unrecognized error')\n")
    assert pinned.probe("cuda:0").words() == "the process ended with 1: RuntimeError: unrecognized error"


def test_a_machine_without_an_accelerator_pins_nothing() -> None:
    with pytest.raises(RuntimeError, match="not pinned"):
        pinned.copy_batches("cpu")


def test_batches_that_arrive_changed_are_a_fault_and_right_ones_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: True)
    pinned.copy_batches("cpu")
    original = torch.Tensor.to
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *args, **named: original(self + 1, *args, **named))
    with pytest.raises(RuntimeError, match="changed"):
        pinned.copy_batches("cpu")
