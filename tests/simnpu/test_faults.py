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
    assert "device: the card's scheduler, memory or link to the host failed: NPU function error" in errors
    assert "507010" in errors
    assert "the same command goes on after step 2" in errors
    assert manifest(tmp_path / "run")["status"] == "failed"
    assert "507010" in manifest(tmp_path / "run")["reason"]

    assert "goes on after step 2" in succeeded(npu_train(*arguments))
    assert exact(tmp_path / "run") == exact(tmp_path / "whole")


def test_an_operator_of_the_model_that_is_missing_is_named(
    npu_train: Train, npu_arguments: Arguments
) -> None:
    """One that the probes need is named by them, another one by the step that needs it."""
    errors = stopped(npu_train(*npu_arguments("lora", "silu"), SIMNPU_MISSING="silu"), EXIT_UNAVAILABLE)
    assert "aten::silu" in errors
    done = npu_train(*npu_arguments("lora", "select"), SIMNPU_MISSING="index_select")
    assert "device: an operator is missing: " in stopped(done, EXIT_UNAVAILABLE)
    assert "aten::index_select" in done.stderr


def test_without_a_solver_oft_inverts_by_products(
    npu_train: Train, npu_arguments: Arguments, tmp_path: Path
) -> None:
    fields = {"precision": "fp32"}
    succeeded(npu_train(*npu_arguments("oft", "whole", **fields)))
    succeeded(npu_train(*npu_arguments("oft", **fields), SIMNPU_MISSING="linalg_inv_ex,_linalg_inv_ex"))
    assert manifest(tmp_path / "run")["device"]["rotations"]["value"] == "products"
    assert manifest(tmp_path / "run")["results"]["orthogonality_error"] < 1e-5
    assert apart(losses(tmp_path / "run"), losses(tmp_path / "whole")) < SAME_FP32


def test_a_device_that_is_too_small_is_told_and_with_auto_batch_given_way_to(
    npu_train: Train, npu_arguments: Arguments, tmp_path: Path
) -> None:
    """It lacks two fifths of what the run takes, and a forward of sixteen samples takes more than that."""
    fields = {"per_device_train_batch_size": 16, "precision": "fp32"}
    succeeded(npu_train(*npu_arguments("lora", "whole", **fields)))
    results = manifest(tmp_path / "whole")["results"]
    assert results["auto_batch"] == []
    small = {"SIMNPU_MEMORY_BYTES": str(results["peak_memory_bytes"] * 3 // 5)}

    errors = stopped(npu_train(*npu_arguments("lora", "told", **fields), **small), EXIT_TRAINING)
    assert "out of memory in training" in errors
    assert "NPU out of memory. Tried to allocate" in errors
    assert "--set auto_batch=true" in errors

    succeeded(npu_train(*npu_arguments("lora", **fields, auto_batch=True), **small))
    assert manifest(tmp_path / "run")["results"]["auto_batch"]
    assert any(finding["name"].startswith("out_of_memory") for finding in finding_lines(tmp_path / "run"))
    assert apart(losses(tmp_path / "run"), losses(tmp_path / "whole")) < SAME_FP32


def test_a_device_that_does_not_hold_the_model_is_told_so(npu_train: Train, npu_arguments: Arguments) -> None:
    """Without probes, which already find that products do not fit."""
    done = npu_train(*npu_arguments("lora"), "--set", "probe=off", SIMNPU_MEMORY_BYTES="100000")
    assert "out of memory" in stopped(done, EXIT_TRAINING)
