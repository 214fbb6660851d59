"""The device policy is the image's data; its environment is set before torch, and never over the user's."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train.cli import call
from train.image import VARIABLE, BuildInfo, read_build_info
from train.policy import PLAIN, policy_for, read_policy, set_environment, set_image_environment

ROOT = Path(__file__).resolve().parent.parent.parent
RENDERED = sorted((ROOT / "images" / "rendered").glob("*/build-info.json"))


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., BuildInfo]:
    """The build info of a rendered image, read as in that image; fields may be changed."""

    def read(name: str, **fields: Any) -> BuildInfo:
        content = json.loads((ROOT / "images" / "rendered" / name / "build-info.json").read_text())
        path = tmp_path / "build-info.json"
        path.write_text(json.dumps(content | fields))
        monkeypatch.setenv(VARIABLE, str(path))
        image = read_build_info()
        assert image is not None
        return image

    return read


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HCCL_CONNECT_TIMEOUT", "HCCL_OP_TIMEOUT", "PYTORCH_ALLOC_CONF"):
        monkeypatch.setenv(name, "x")  # so that what a test sets is taken back
        monkeypatch.delenv(name)
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NPU_ALLOC_CONF"):
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("name", "precision", "on_request", "pinned", "group", "allocator", "timeouts"),
    [
        ("cuda", "bf16 fp16 fp32", "", True, "nccl", "PYTORCH_CUDA_ALLOC_CONF", 0),
        ("cuda13", "bf16 fp16 fp32", "", True, "nccl", "PYTORCH_CUDA_ALLOC_CONF", 0),
        ("ascend", "fp16 bf16 fp32", "", False, "hccl", "PYTORCH_NPU_ALLOC_CONF", 2),
        ("hygon", "bf16 fp32", "fp16", True, "nccl", "PYTORCH_CUDA_ALLOC_CONF", 0),
        ("cpu", "fp32", "", False, "gloo", None, 0),
    ],
)
def test_every_row_of_the_policy_reaches_the_run_side(
    rendered: Callable[..., BuildInfo],
    name: str,
    precision: str,
    on_request: str,
    pinned: bool,
    group: str,
    allocator: str | None,
    timeouts: int,
) -> None:
    policy = rendered(name).device_policy
    assert " ".join(policy.precision) == precision
    assert " ".join(policy.precision_on_request) == on_request
    assert policy.attention == ("sdpa", "eager")
    assert (policy.pinned_memory, policy.process_group) == (pinned, group)
    assert list(policy.allocator) == ([allocator] if allocator else [])
    assert len(policy.environment) == timeouts
    assert (policy.loss_scale is None) == (name == "cpu")


def test_there_are_images_and_each_has_a_title(rendered: Callable[..., BuildInfo]) -> None:
    assert len(RENDERED) >= 7
    assert {rendered(path.parent.name).title for path in RENDERED} >= {
        "CPU",
        "NVIDIA CUDA",
        "Hygon DCU (DTK)",
    }


def test_on_another_device_than_the_image_s_the_policy_is_the_plain_one(
    rendered: Callable[..., BuildInfo],
) -> None:
    image = rendered("ascend")
    assert policy_for("npu", image).source == "this image's device policy"
    assert policy_for("cpu", image).source == policy_for("cpu", None).source == "plain policy for cpu"
    assert {name: policy_for(name, None).process_group for name in PLAIN} == {
        "cuda": "nccl",
        "npu": "hccl",
        "cpu": "gloo",
    }


def test_variables_are_set_where_nobody_set_them(rendered: Callable[..., BuildInfo]) -> None:
    assert set_environment(rendered("ascend").device_policy) == []
    assert os.environ["HCCL_CONNECT_TIMEOUT"] == os.environ["HCCL_OP_TIMEOUT"] == "120"
    assert os.environ["PYTORCH_NPU_ALLOC_CONF"] == "expandable_segments:True"


def test_a_user_s_own_setting_stays_and_is_told(
    rendered: Callable[..., BuildInfo], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HCCL_OP_TIMEOUT", "600")
    monkeypatch.setenv("PYTORCH_NPU_ALLOC_CONF", "")
    assert set_environment(rendered("ascend").device_policy) == [
        "HCCL_OP_TIMEOUT was given, the policy's is 120",
        "PYTORCH_NPU_ALLOC_CONF was given, the policy's is expandable_segments:True",
    ]
    assert (os.environ["HCCL_OP_TIMEOUT"], os.environ["PYTORCH_NPU_ALLOC_CONF"]) == ("600", "")


def test_an_allocator_that_the_user_set_for_every_device_is_left_alone(
    rendered: Callable[..., BuildInfo], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
    notes = set_environment(rendered("cuda").device_policy)
    assert notes == ["PYTORCH_CUDA_ALLOC_CONF is left out: PYTORCH_ALLOC_CONF was given"]
    assert "PYTORCH_CUDA_ALLOC_CONF" not in os.environ


def test_every_command_sets_the_image_s_environment_first(
    rendered: Callable[..., BuildInfo], capsys: pytest.CaptureFixture[str]
) -> None:
    rendered("ascend")
    assert call(["--help"]) == 0
    assert os.environ["PYTORCH_NPU_ALLOC_CONF"] == "expandable_segments:True"


def test_a_broken_build_info_is_told_by_the_commands_that_need_it_not_by_help(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none.json"))
    set_image_environment()
    assert call(["--help"]) == 0


@pytest.mark.parametrize("lost", ["precision", "attention", "pinned_memory", "process_group"])
def test_a_policy_of_a_strange_device_must_be_whole(lost: str) -> None:
    values = {name: value for name, value in PLAIN["cuda"].items() if name != lost}
    with pytest.raises(KeyError, match=lost):
        read_policy("xpu", values, "here")
