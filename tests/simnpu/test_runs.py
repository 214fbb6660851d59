"""`train` on a simulated NPU, as its users call it in the ascend image: the whole life of an adapter."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.simnpu.conftest import TRAIN, losses, manifest, succeeded
from tests.train.loop.conftest import exact, step_lines
from train.errors import EXIT_STOPPED

Train = Callable[..., subprocess.CompletedProcess[str]]
Arguments = Callable[..., list[str]]

SAME_FP32 = 1e-4
"""Largest difference of a step's loss (nats) from the CPU's: the same products, fused attention aside."""
SAME_FP16 = 2e-2
"""The same for fp16 under a loss scale: 11 bits of a loss of about 6."""


def apart(left: list[float], right: list[float]) -> float:
    assert len(left) == len(right) > 1
    return max(abs(one - other) for one, other in zip(left, right, strict=True))


def test_a_run_takes_the_policy_of_the_image(
    npu_train: Train, npu_arguments: Arguments, tmp_path: Path
) -> None:
    """fp16 under a loss scale that begins at 2 ** 16, fused attention, no pinned memory."""
    succeeded(npu_train(*npu_arguments("oft", max_steps=3)))

    device = manifest(tmp_path / "run")["device"]
    assert device["device"]["value"] == "npu"
    assert device["precision"]["value"] == "fp16"
    assert device["attn_implementation"]["value"] == "sdpa"
    assert device["pinned_memory"]["value"] is False
    assert device["packing"]["value"] == "by sample"
    assert device["rotations"]["value"] == "products"
    lines = step_lines(tmp_path / "run")
    assert lines[0]["loss_scale"] == 2**16
    assert sum(line["num_skipped_steps"] for line in lines) == 0
    assert 0 < lines[-1]["peak_memory_bytes"] < 64 << 20  # the allocator's, not the process's


@pytest.mark.slow
def test_an_overflow_costs_a_step_and_not_the_adapter(
    npu_train: Train, npu_arguments: Arguments, tmp_path: Path
) -> None:
    """The device's fused AdamW would write NaN into the weights: it knows of no skip."""
    succeeded(npu_train(*npu_arguments("lora", max_steps=10, loss_scale=2.0**22)))
    lines = step_lines(tmp_path / "run")
    skipped = sum(line["num_skipped_steps"] for line in lines)
    assert skipped >= 1
    assert lines[-1]["loss_scale"] == 2.0 ** (22 - skipped)
    assert all(isinstance(line["loss"], float) for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lora", "oft"])
@pytest.mark.parametrize(("precision", "same"), [("fp32", SAME_FP32), ("fp16", SAME_FP16)])
def test_the_loss_curve_is_the_cpu_s(
    npu_train: Train,
    npu_arguments: Arguments,
    tmp_path: Path,
    kind: str,
    precision: str,
    same: float,
) -> None:
    fields = {"max_steps": 12, "learning_rate": 5e-3}
    succeeded(npu_train(*npu_arguments(kind, **fields, precision=precision)))
    succeeded(npu_train(*npu_arguments(kind, "cpu", **fields, precision="fp32", device="cpu")))

    found = losses(tmp_path / "run")
    assert found[-1] < found[0] - 0.05
    assert apart(found, losses(tmp_path / "cpu")) < same


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lora", "oft"])
def test_train_eval_generate_and_merge(
    npu_train: Train, npu_arguments: Arguments, tmp_path: Path, tiny: Path, rows_file: Path, kind: str
) -> None:
    fields = {"precision": "fp32", "num_generations": 1, "max_new_tokens": 16, "learning_rate": 1e-2}
    succeeded(npu_train(*npu_arguments(kind, **fields), "--eval-data", rows_file))
    results = manifest(tmp_path / "run")["results"]
    adapter, merged = tmp_path / "run" / "adapter", tmp_path / "merged"
    of = ["--model", tiny, "--adapter", adapter]

    report = json.loads(
        succeeded(npu_train("eval", *of, "--data", rows_file, "--precision", "fp32", "--json"))
    )
    assert report["device"]["device"]["value"] == "npu"
    assert report["base"]["loss"] == pytest.approx(results["eval_loss_before"], abs=1e-4)
    assert report["adapted"]["loss"] == pytest.approx(results["eval_loss_after"], abs=1e-4)
    half = json.loads(succeeded(npu_train("eval", *of, "--data", rows_file, "--json")))
    assert half["device"]["precision"]["value"] == "fp16"
    assert half["adapted"]["loss"] == pytest.approx(report["adapted"]["loss"], abs=SAME_FP16)

    ask = ["generate", *of, "--data", rows_file, "--limit", 1, "--max-new-tokens", 16, "--json"]
    answers = json.loads(succeeded(npu_train(*ask, "--precision", "fp32")))
    assert answers[0]["answer"] == results["generations"][0]["after"]

    succeeded(npu_train("merge", *of, "--output", merged))
    whole = json.loads(
        succeeded(npu_train("eval", "--model", merged, "--data", rows_file, "--json", "--device", "cpu"))
    )
    assert whole["base"]["loss"] == pytest.approx(report["adapted"]["loss"], abs=1e-4)


def start(environment: dict[str, str], arguments: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", TRAIN, *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
    )


def wait_for_lines(folder: Path, count: int, process: subprocess.Popen[str]) -> None:
    path = folder / "metrics.jsonl"
    until = time.monotonic() + 300
    while not path.exists() or len(path.read_text("utf-8").splitlines()) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "more"), [("lora", {"lora.lora_dropout": 0.1}), ("oft", {"gradient_checkpointing": True})]
)
def test_a_run_that_a_signal_stopped_goes_on_to_the_same_figures(
    npu_train: Train,
    npu_environment: Callable[..., dict[str, str]],
    npu_arguments: Arguments,
    tmp_path: Path,
    kind: str,
    more: dict[str, Any],
) -> None:
    """In fp16, so the loss scale is part of it; LoRA's dropout draws from the device's generator."""
    fields = {"max_steps": 10, **more}
    succeeded(npu_train(*npu_arguments(kind, "whole", **fields)))
    slowly = npu_environment(SIMNPU_LATENCY_MICROSECONDS="100")
    process = start(slowly, npu_arguments(kind, **fields))
    wait_for_lines(tmp_path / "run", 2, process)
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=300)
    assert process.returncode == EXIT_STOPPED, out + errors
    stopped_after = len(step_lines(tmp_path / "run"))
    assert 2 <= stopped_after < 10

    out = succeeded(npu_train(*npu_arguments(kind, **fields)))
    assert f"goes on after step {stopped_after}" in out
    assert exact(tmp_path / "run") == exact(tmp_path / "whole")
