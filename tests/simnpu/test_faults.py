"""Each fault of a device leads to the policy's answer or to a clear stop; no traceback, no wrong result."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.simnpu.conftest import losses, manifest, succeeded
from tests.simnpu.test_runs import SAME_FP32, apart
from tests.train.loop.conftest import exact, finding_lines
from train.errors import EXIT_TRAINING, EXIT_UNAVAILABLE

Train = Callable[..., subprocess.CompletedProcess[str]]
Arguments = Callable[..., list[str]]

pytestmark = pytest.mark.slow


def stopped(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The error of a run that ended with a code and words, and nothing else on stderr."""
    assert done.returncode == code, done.stdout + done.stderr
    errors = done.stderr[done.stderr.index("error: ") :]
    assert "Traceback" not in done.stderr
    assert "\nhint: " in errors
    return errors


def test_a_lost_device_stops_the_run_and_the_same_command_goes_on(
    npu_train: Train, npu_arguments: Arguments, tmp_path: Path
) -> None:
    fields: dict[str, Any] = {"save_steps": 2, "lora.lora_dropout": 0.1}
    succeeded(npu_train(*npu_arguments("lora", "whole", **fields)))
    arguments = npu_arguments("lora", **fields)
    errors = stopped(npu_train(*arguments, SIMNPU_LOST_AT_STEP="4"), EXIT_UNAVAILABLE)
    assert "device: it failed: NPU function error" in errors
    assert "507010" in errors
    assert "the same command goes on after step 2" in errors
    assert manifest(tmp_path / "run")["status"] == "failed"
    assert "507010" in manifest(tmp_path / "run")["reason"]

    assert "goes on after step 2" in succeeded(npu_train(*arguments))
    assert exact(tmp_path / "run") == exact(tmp_path / "whole")


def test_an_operator_of_the_model_that_is_missing_is_named(
    npu_train: Train, npu_arguments: Arguments
) -> None:
    errors = stopped(npu_train(*npu_arguments("lora"), SIMNPU_MISSING="silu"), EXIT_UNAVAILABLE)
    assert "aten::silu" in errors


def test_without_a_solver_oft_inverts_by_products(
    npu_train: Train, npu_arguments: Arguments, tmp_path: Path
) -> None:
    fields = {"precision": "fp32"}
    succeeded(npu_train(*npu_arguments("oft", "whole", **fields)))
    succeeded(npu_train(*npu_arguments("oft", **fields), SIMNPU_MISSING="linalg_inv_ex,_linalg_inv_ex"))
    assert manifest(tmp_path / "run")["results"]["orthogonality_error"] < 1e-5
    assert apart(losses(tmp_path / "run"), losses(tmp_path / "whole")) < SAME_FP32


MEMORY = 12_000_000
"""Bytes of a device that holds the tiny model and a forward of one or two samples, not of sixteen."""


def test_a_device_that_is_too_small_is_told_with_what_would_fit(
    npu_train: Train, npu_arguments: Arguments
) -> None:
    arguments = npu_arguments("lora", per_device_train_batch_size=16, packing="off")
    errors = stopped(npu_train(*arguments, SIMNPU_MEMORY_BYTES=str(MEMORY)), EXIT_TRAINING)
    assert "out of memory in training" in errors
    assert "NPU out of memory. Tried to allocate" in errors
    assert "--set auto_batch=true" in errors


def test_with_auto_batch_a_small_device_takes_smaller_forwards_to_the_same_losses(
    npu_train: Train, npu_arguments: Arguments, tmp_path: Path
) -> None:
    fields = {"per_device_train_batch_size": 16, "precision": "fp32", "auto_batch": True}
    succeeded(npu_train(*npu_arguments("lora", "whole", **fields)))
    succeeded(npu_train(*npu_arguments("lora", **fields), SIMNPU_MEMORY_BYTES=str(MEMORY)))
    assert manifest(tmp_path / "whole")["results"]["auto_batch"] == []
    assert manifest(tmp_path / "run")["results"]["auto_batch"]
    assert any(finding["name"].startswith("out_of_memory") for finding in finding_lines(tmp_path / "run"))
    assert apart(losses(tmp_path / "run"), losses(tmp_path / "whole")) < SAME_FP32


def test_a_device_that_does_not_hold_the_model_is_told_so(npu_train: Train, npu_arguments: Arguments) -> None:
    errors = stopped(npu_train(*npu_arguments("lora"), SIMNPU_MEMORY_BYTES="100000"), EXIT_TRAINING)
    assert "out of memory" in errors
