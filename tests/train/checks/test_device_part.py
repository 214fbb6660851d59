"""The device part: skipped where there is no device, passed by a sound one, failed by each kind of fault."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from build_infos import build_content
from device_faults import Losing, attending, not_a_number, without_flash_wheel

from train.checks import device_part, reduce, training, verify
from train.checks.report import CheckFailed, Report, Skipped
from train.errors import UserError
from train.image import BuildInfo
from train.policy import policy_for
from train.probes import pinned
from train.probes.outcome import Outcome

CPU = torch.device("cpu")
POLICY = {"precision": ["bf16", "fp32"], "precision_on_request": ["fp16"], "attention": ["sdpa", "eager"]}


def report_of(image: BuildInfo | None, folder: Path, device_type: str | None = None) -> Report:
    report = Report("test")
    for name, check in device_part.device_checks(image, folder, device_type):
        report.check("device", name, check)
    return report


def test_without_the_device_every_check_is_skipped_with_the_reason(
    build: Callable[..., BuildInfo], tmp_path: Path
) -> None:
    policy = build_content()["device_policy"] | POLICY
    report = report_of(build(device_type="npu", device_policy=policy), tmp_path)
    assert [result.name for result in report.results] == [
        *("seen", "products bf16", "sdpa bf16", "eager bf16", "products fp32", "sdpa fp32", "eager fp32"),
        *("products fp16", "sdpa fp16", "eager fp16", "pinned memory", "rotations", "all-reduce"),
        *("lora follows the cpu", "oft follows the cpu"),
    ]
    assert {result.status for result in report.results} == {"skipped"}
    assert {result.detail for result in report.results} == {"no device: torch finds no npu here"}


def test_the_cpu_is_the_reference_and_is_skipped(build: Callable[..., BuildInfo], tmp_path: Path) -> None:
    for image in (None, build()):
        report = report_of(image, tmp_path)
        assert {result.status for result in report.results} == {"skipped"}
        assert "the cpu needs no check of its own" in report.results[0].detail


@pytest.mark.slow
def test_a_sound_device_passes_the_numeric_checks(
    build: Callable[..., BuildInfo], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU, checked as if it were a device. The all-reduce has tests of its own."""
    monkeypatch.setattr(device_part, "all_devices_reduce", lambda *_: "")
    policy = build_content()["device_policy"] | POLICY
    report = report_of(build(device_policy=policy), tmp_path, "cpu")
    statuses = {result.name: result.status for result in report.results}
    assert statuses.pop("pinned memory") == "skipped"
    assert set(statuses.values()) == {"passed"}, report.as_dict()
    details = {result.name: result.detail for result in report.results}
    assert "apart" in details["products bf16"]
    assert "bf16: losses at most" in details["lora follows the cpu"]
    assert "fp32: losses at most 0.0% apart" in details["oft follows the cpu"]


def test_products_that_lose_bits_fail() -> None:
    with Losing(torch.bfloat16, 3), pytest.raises(CheckFailed, match="gradients .* is allowed"):
        device_part.products_are_right(CPU, "bf16")


def test_an_attention_that_is_wrong_in_every_form_fails_and_one_with_a_right_form_passes() -> None:
    with (
        attending(not_a_number),
        pytest.raises(CheckFailed, match="sdpa: .*inf.*; sdpa without flash kernels: .*inf"),
    ):
        device_part.attention_is_right(CPU, "sdpa", "bf16")
    with attending(without_flash_wheel):
        detail = device_part.attention_is_right(CPU, "sdpa", "bf16")
    assert "flash_attn_2_cuda" in detail
    assert "sdpa without flash kernels: unmasked" in detail
    assert torch.backends.cuda.flash_sdp_enabled()


def test_pinned_memory_fails_by_its_words_and_is_skipped_where_it_is_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        pinned, "probe", lambda device: Outcome("pinned memory", False, fault="ended by SIGSEGV")
    )
    with pytest.raises(CheckFailed, match="SIGSEGV"):
        device_part.pinned_memory_works(CPU, policy_for("cuda", None))
    with pytest.raises(Skipped, match="does not use it"):
        device_part.pinned_memory_works(CPU, policy_for("cpu", None))


def test_a_loss_curve_that_leaves_the_cpu_s_fails_and_so_does_a_run_that_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def curve(bench: Any, adapter: str, device: str, precision: str) -> training.Curve:
        if (device, precision) == ("cuda", "fp32"):
            raise UserError("loss is nan")
        right = [6.0, 5.0, 4.0]
        wrong = [6.0, 5.0, 4.3]
        return training.Curve(
            wrong if device == "cuda" else right, "fp16" if precision == "auto" else precision
        )

    monkeypatch.setattr(training, "curve", curve)
    with pytest.raises(
        CheckFailed, match=r"fp16: losses at most 7.5% apart, 2% is allowed.*fp32: loss is nan"
    ):
        device_part.curve_follows_cpu(torch.device("cuda"), tmp_path, "lora")


def test_two_processes_sum_right_and_a_group_that_cannot_be_is_told() -> None:
    assert "2 processes of gloo sum" in device_part.all_devices_reduce(CPU, policy_for("cpu", None))
    with pytest.raises(CheckFailed, match="process 0: ended with 1: .*nonesuch"):
        reduce.reduce_everywhere("cpu", "nonesuch", 1)
    with pytest.raises(Skipped, match="one cpu only"):
        device_part.all_devices_reduce(CPU, policy_for("cpu", None), num_processes=1)


def test_processes_that_wait_for_each_other_are_ended() -> None:
    with pytest.raises(CheckFailed, match="process 0: not done in time; process 1: not done in time"):
        reduce.reduce_everywhere("cpu", "gloo", 2, limit_seconds=0.3)


def test_a_wrong_sum_is_a_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from torch import distributed

    monkeypatch.setattr(distributed, "all_reduce", lambda tensor: tensor.add_(1))
    with pytest.raises(RuntimeError, match=f"{reduce.NUM_ELEMENTS} of {reduce.NUM_ELEMENTS} sums are wrong"):
        reduce.take_part("cpu", "gloo", 0, 1, str(tmp_path / "store"))


def test_after_the_build_part_a_plugin_is_looked_for_in_a_new_process(
    build: Callable[..., BuildInfo],
) -> None:
    image = build(device_type="npu", plugin={"distribution": "brick", "module": "brick", "version": "1.0"})
    report = Report("test")
    verify.check_device(image, report, None, is_fresh=False)
    assert {result.status for result in report.results} == {"skipped"}
    own = [result.detail for result in report.results if "says nothing of its host" not in result.detail]
    assert len(own) > 5
    assert set(own) == {"no device: torch finds no npu here"}


def test_a_new_process_that_says_nothing_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    report = Report("test")
    verify.check_device_elsewhere(report, None)
    assert [(one.part, one.status, one.detail) for one in report.results] == [
        ("device", "failed", "ended with 1: it said nothing")
    ]


def test_the_curve_is_read_from_the_run_s_own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = training.Bench(tmp_path)
    output = tmp_path / "curve-lora-cpu-fp32"
    output.mkdir()
    (output / "run.json").write_text(json.dumps({"device": {"precision": {"value": "fp32"}}}))
    (output / "metrics.jsonl").write_text('{"loss": 2.5}\n{"eval_loss": {"eval": 3}}\n{"loss": 1.5}\n')
    monkeypatch.setattr(training, "_run", partial(pytest.fail, "the run was made again"))
    assert training.curve(bench, "lora", "cpu", "fp32") == training.Curve([2.5, 1.5], "fp32")
