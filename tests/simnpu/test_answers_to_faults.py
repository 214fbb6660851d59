"""What a device gets wrong is found before training: the next candidate is taken, or the run refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.simnpu.conftest import losses, manifest, succeeded
from tests.simnpu.test_faults import stopped
from tests.simnpu.test_runs import SAME_FP16, SAME_FP32, apart
from train.errors import EXIT_UNAVAILABLE

Train = Callable[..., subprocess.CompletedProcess[str]]
Arguments = Callable[..., list[str]]

pytestmark = pytest.mark.slow


@pytest.fixture
def cpu_losses(npu_train: Train, npu_arguments: Arguments, tmp_path: Path) -> Callable[..., list[float]]:
    """Of the same run on the CPU, in fp32."""

    def run(kind: str, **fields: Any) -> list[float]:
        succeeded(npu_train(*npu_arguments(kind, "cpu", **fields, device="cpu", precision="fp32")))
        return losses(tmp_path / "cpu")

    return run


@pytest.fixture
def policy(image: Path, tmp_path: Path) -> Callable[..., str]:
    """The path of the image's build info with other fields of its device policy."""

    def written(**fields: Any) -> str:
        content = json.loads(image.read_text(encoding="utf-8"))
        content["device_policy"] |= fields
        path = tmp_path / "other-build-info.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        return str(path)

    return written


@pytest.mark.parametrize("where", ["forward", "masked", "backward"])
def test_where_fused_attention_is_wrong_a_run_attends_eagerly(
    npu_train: Train,
    npu_arguments: Arguments,
    cpu_losses: Callable[..., list[float]],
    tmp_path: Path,
    where: str,
) -> None:
    out = succeeded(npu_train(*npu_arguments("lora"), SIMNPU_SDPA_NAN=where))
    choice = manifest(tmp_path / "run")["device"]["attn_implementation"]
    assert choice["value"] == "eager"
    assert "sdpa fails its probe" in choice["reason"]
    assert "attn implementation: eager (" in out
    assert apart(losses(tmp_path / "run"), cpu_losses("lora")) < SAME_FP16


def test_fused_attention_that_was_asked_for_and_is_wrong_is_refused(
    npu_train: Train, npu_arguments: Arguments, tmp_path: Path
) -> None:
    arguments = npu_arguments("lora", attn_implementation="sdpa")
    errors = stopped(npu_train(*arguments, SIMNPU_SDPA_NAN="masked"), EXIT_UNAVAILABLE)
    assert "sdpa fails its probe" in errors
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_bf16_that_loses_bits_gives_way_to_the_next_precision(
    npu_train: Train,
    npu_arguments: Arguments,
    policy: Callable[..., str],
    cpu_losses: Callable[..., list[float]],
    tmp_path: Path,
) -> None:
    variables = {"SIMNPU_BF16_BITS": "2", "ISOTUNE_BUILD_INFO": policy(precision=["bf16", "fp32"])}
    succeeded(npu_train(*npu_arguments("lora"), **variables))
    choice = manifest(tmp_path / "run")["device"]["precision"]
    assert choice["value"] == "fp32"
    assert "bf16 fails its probe" in choice["reason"]
    assert apart(losses(tmp_path / "run"), cpu_losses("lora")) < SAME_FP32


def test_bf16_that_was_asked_for_and_loses_bits_is_refused_with_figures(
    npu_train: Train, npu_arguments: Arguments
) -> None:
    arguments = npu_arguments("lora", precision="bf16")
    succeeded(npu_train(*arguments))
    done = npu_train(*npu_arguments("lora", "second", precision="bf16", probe="again"), SIMNPU_BF16_BITS="2")
    assert "precision: on npu:0: bf16 fails its probe" in stopped(done, EXIT_UNAVAILABLE)


def test_pinned_memory_is_left_alone_or_tried_first(
    npu_train: Train, npu_arguments: Arguments, policy: Callable[..., str], tmp_path: Path
) -> None:
    """Off by the image's policy; where a policy has it on, what fails its probe is off, unless asked for."""
    faulty = {"SIMNPU_PINNED_FAILS_AT_STEP": "1"}
    succeeded(npu_train(*npu_arguments("lora", "off"), **faulty))
    assert manifest(tmp_path / "off")["device"]["pinned_memory"]["value"] is False

    other = faulty | {"ISOTUNE_BUILD_INFO": policy(pinned_memory=True)}
    succeeded(npu_train(*npu_arguments("lora", "tried"), **other))
    choice = manifest(tmp_path / "tried")["device"]["pinned_memory"]
    assert choice["value"] is False
    assert "unrecognized error" in choice["reason"]

    errors = stopped(
        npu_train(*npu_arguments("lora", "asked", pinned_memory="on"), **faulty), EXIT_UNAVAILABLE
    )
    assert "pinned memory fails its probe" in errors


def test_pinned_memory_that_fails_later_stops_the_run_with_the_cure(
    npu_train: Train, npu_arguments: Arguments, tmp_path: Path
) -> None:
    arguments = npu_arguments("lora", pinned_memory="on", save_steps=1)
    done = npu_train(*arguments, SIMNPU_PINNED_FAILS_AT_STEP="4")
    errors = stopped(done, EXIT_UNAVAILABLE)
    assert "pinned memory: the device fails with it" in errors
    assert "--set pinned_memory=off; the same command goes on after step" in errors
    arguments[-2:] = ["--set=pinned_memory=off", arguments[-1]]
    assert "resume: goes on after step" in succeeded(npu_train(*arguments))


def test_a_run_on_a_host_of_two_devices_takes_one(
    npu_train: Train, npu_arguments: Arguments, tmp_path: Path
) -> None:
    succeeded(npu_train(*npu_arguments("lora")))
    succeeded(npu_train(*npu_arguments("lora", "two"), SIMNPU_DEVICES="2"))
    assert manifest(tmp_path / "two")["plan"]["num_devices"] == 1
    assert losses(tmp_path / "two") == losses(tmp_path / "run")


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"SIMNPU_DEVICES": "0"}, "torch finds no npu device"),
        ({"ASCEND_RT_VISIBLE_DEVICES": "3"}, "ASCEND_RT_VISIBLE_DEVICES is '3'"),
        ({"SIMNPU_LIBRARY": ""}, "libascend_hal.so: cannot be loaded here: the host's driver"),
    ],
)
def test_without_a_device_the_run_does_not_begin(
    npu_train: Train, npu_arguments: Arguments, variables: dict[str, str], words: str
) -> None:
    assert words in stopped(npu_train(*npu_arguments("lora"), **variables), EXIT_UNAVAILABLE)
