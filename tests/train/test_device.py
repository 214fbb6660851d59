"""The choices of a run: by the policy, by its probes, and refused by name where the device is another."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from device_faults import asked, attending, not_a_number, without_flash_wheel

from train import detect
from train.device import choose
from train.errors import EXIT_UNAVAILABLE, UserError
from train.image import VARIABLE, BuildInfo, read_build_info
from train.probes import pinned
from train.probes.outcome import Outcome

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def cpu_as(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., BuildInfo]:
    """A cpu image with the device policy of another image, as far as a CPU can follow it."""

    def make(name: str, **policy: Any) -> BuildInfo:
        content = json.loads((ROOT / "images" / "rendered" / name / "build-info.json").read_text())
        content |= {
            "device_type": "cpu",
            "torch": {"version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip},
        }
        content["device_policy"] |= policy
        path = tmp_path / "build-info.json"
        path.write_text(json.dumps(content))
        monkeypatch.setenv(VARIABLE, str(path))
        for variable in [
            *content["device_policy"]["environment"],
            "PYTORCH_CUDA_ALLOC_CONF",
            "PYTORCH_NPU_ALLOC_CONF",
        ]:
            monkeypatch.setenv(variable, "kept")
        image = read_build_info()
        assert image is not None
        return image

    monkeypatch.setattr(pinned, "probe", lambda device: Outcome("pinned memory", True))
    return make


def test_a_plain_cpu_proves_its_attention_alone_and_quickly() -> None:
    choices = choose(asked(), None)
    assert choices.values() == {
        "device": "cpu",
        "precision": "fp32",
        "attn_implementation": "sdpa",
        "pinned_memory": False,
    }
    assert [one["probe"] for one in choices.probes] == ["attention sdpa, fp32"]
    assert choose(asked(attn_implementation="eager"), None).probes == ()


def test_choices_reasons_figures_and_environment_are_told_and_recorded(
    cpu_as: Callable[..., BuildInfo], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose(asked(), None).process_group.value is None
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    choices = choose(asked(device="cpu"), cpu_as("ascend"), rotates=True)
    recorded = json.loads(json.dumps(choices.as_dict(), allow_nan=False))
    assert recorded["precision"]["value"] == "fp16"
    assert recorded["loss_scale"]["value"] == {"dynamic": True, "initial": 65536}
    assert recorded["process_group"] == {"value": "hccl", "reason": "this image's device policy"}
    assert recorded["rotations"]["value"] == "solver"
    assert recorded["environment"]["value"]["HCCL_OP_TIMEOUT"] == "kept"
    assert "HCCL_OP_TIMEOUT was given, the policy's is 120" in recorded["environment"]["reason"]
    assert [one["probe"] for one in recorded["probes"]] == ["precision fp16", "attention sdpa, fp16"]
    assert {line.partition(":")[0] for line in choices.lines()} == {
        name.replace("_", " ") for name in recorded if name != "probes"
    }


def test_the_attention_that_fails_gives_way_to_the_next_with_its_words(
    cpu_as: Callable[..., BuildInfo],
) -> None:
    with attending(not_a_number):
        choice = choose(asked(), cpu_as("ascend")).attn_implementation
    assert choice.value == "eager"
    assert "sdpa fails its probe: unmasked" in choice.reason
    assert "masked inf" in choice.reason


def test_an_attention_asked_for_that_fails_is_an_error_with_its_figures(
    cpu_as: Callable[..., BuildInfo],
) -> None:
    with attending(not_a_number), pytest.raises(UserError, match="masked inf") as caught:
        choose(asked(attn_implementation="sdpa"), cpu_as("ascend"))
    assert caught.value.exit_code == EXIT_UNAVAILABLE
    assert "attn_implementation" in caught.value.message


@pytest.mark.parametrize("wish", ["auto", "sdpa"])
def test_unmasked_attention_that_needs_a_missing_wheel_is_made_without_flash_kernels(
    cpu_as: Callable[..., BuildInfo], wish: str
) -> None:
    with attending(without_flash_wheel):
        choice = choose(asked(attn_implementation=wish), cpu_as("hygon")).attn_implementation
        assert not torch.backends.cuda.flash_sdp_enabled()
        torch.nn.functional.scaled_dot_product_attention(
            *(torch.ones(1, 1, 4, 8, dtype=torch.bfloat16) for _ in range(3))
        )
    assert choice.value == "sdpa"
    assert choice.reason.startswith("sdpa without flash kernels: ")
    assert "No matching libraries found for flash_attn_2_cuda" in choice.reason


def test_fp16_is_taken_only_when_asked_for_where_the_policy_says_so(
    cpu_as: Callable[..., BuildInfo], monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.probes import precision

    original = precision.probe

    def without_bf16(name: str, device: torch.device) -> Outcome:
        return (
            Outcome(f"precision {name}", False, fault="no bf16") if name == "bf16" else original(name, device)
        )

    monkeypatch.setattr(precision, "probe", without_bf16)
    choices = choose(asked(), cpu_as("hygon"))
    assert choices.precision.value == "fp32"
    assert "bf16 fails its probe: no bf16" in choices.precision.reason
    assert choices.loss_scale.value is None
    choice = choose(asked(precision="fp16"), cpu_as("hygon")).precision
    assert choice.value == "fp16"
    assert choice.reason.startswith("asked for, and this image's device policy takes it only so; product")


def test_pinned_memory_that_fails_is_not_used_and_when_asked_for_is_an_error(
    cpu_as: Callable[..., BuildInfo], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert choose(asked(), cpu_as("hygon")).pinned_memory.value is True
    assert choose(asked(pinned_memory="off"), cpu_as("hygon")).pinned_memory.reason == "asked for"
    failed = Outcome("pinned memory", False, fault="no answer within 120 s")
    monkeypatch.setattr(pinned, "probe", lambda device: failed)
    choice = choose(asked(), cpu_as("hygon")).pinned_memory
    assert (choice.value, choice.reason) == (False, "pinned memory fails its probe: no answer within 120 s")
    with pytest.raises(UserError, match="no answer within 120 s"):
        choose(asked(pinned_memory="on"), cpu_as("hygon"))


@pytest.mark.parametrize(
    ("scale", "precision", "initial"),
    [("auto", "fp16", 65536), (1024.0, "fp16", 1024.0), ("auto", "bf16", None)],
)
def test_the_loss_scale_is_fp16_s_alone(scale: Any, precision: str, initial: Any) -> None:
    value = choose(asked(loss_scale=scale, precision=precision), None).loss_scale.value
    assert (value and value["initial"]) == initial


@pytest.mark.parametrize(
    ("image", "runs", "words"),
    [
        (
            "cuda",
            {"cuda": None, "hip": "6.3.42131"},
            "built for NVIDIA CUDA, .*cuda is None, the image's is 12.8",
        ),
        ("hygon", {"cuda": "12.8", "hip": None}, "built for Hygon DCU .*hip is None, the image's is unknown"),
        ("cpu", {"cuda": "12.8", "hip": None}, "built for CPU, .*cuda is 12.8, the image's is None"),
    ],
)
def test_an_image_whose_torch_is_of_another_kind_is_refused_by_name(
    image: str, runs: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both kinds call their devices `cuda`: only torch.version tells them apart."""
    monkeypatch.setenv(VARIABLE, str(ROOT / "images" / "rendered" / image / "build-info.json"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name, value in runs.items():
        monkeypatch.setattr(torch.version, name, value)
    with pytest.raises(UserError, match=words) as caught:
        choose(asked(), read_build_info())
    assert caught.value.exit_code == EXIT_UNAVAILABLE


@pytest.mark.parametrize(
    ("image", "runs"),
    [("hygon", {"cuda": None, "hip": "6.3.42131"}), ("cuda", {"cuda": "12.8", "hip": None})],
)
def test_a_torch_of_the_image_s_kind_is_no_fault(
    image: str, runs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(ROOT / "images" / "rendered" / image / "build-info.json"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name, value in runs.items():
        monkeypatch.setattr(torch.version, name, value)
    found = read_build_info()
    assert found is not None
    assert detect.find_device("auto", found) == ("cuda", f"this image is built for {found.title}")


def test_an_image_for_a_device_that_torch_does_not_find_ends_with_the_cure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(VARIABLE, str(ROOT / "images" / "rendered" / "ascend" / "build-info.json"))
    monkeypatch.setattr(torch.version, "cuda", None)  # as in that image
    monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "9")
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    with pytest.raises(UserError) as caught:
        choose(asked(), read_build_info())
    assert caught.value.exit_code == EXIT_UNAVAILABLE
    assert caught.value.message == (
        "device: torch finds no npu device, and this image is built for Huawei Ascend (CANN); its plugin "
        "torch_npu is not loaded (TORCH_DEVICE_BACKEND_AUTOLOAD=0); libascend_hal.so: cannot be loaded here: "
        "the host's driver: -v /usr/local/Ascend/driver/lib64:/usr/local/Ascend/driver/lib64:ro; "
        "ASCEND_RT_VISIBLE_DEVICES is '9'"
    )
    assert "train doctor" in caught.value.hint
    assert choose(asked(device="cpu"), read_build_info()).device.value == "cpu"


def test_a_driver_that_does_not_answer_is_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> bool:
        raise RuntimeError("driver error 507899")

    monkeypatch.setattr(torch.cuda, "is_available", broken)
    assert not detect.is_available("cuda")


def test_a_torch_that_needs_the_host_s_driver_ends_with_words_not_a_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As torch raises it where a plugin of its autoload finds no driver."""
    (tmp_path / "torch.py").write_text(
        "try:\n    raise ImportError('libdriver.so: version 7 is too old')\n"
        "except ImportError as fault:\n"
        "    raise RuntimeError('Failed to load the backend extension: x') from fault\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch")
    with pytest.raises(UserError, match="backend extension: x; libdriver.so: version 7") as caught:
        detect.require_torch()
    assert caught.value.exit_code == EXIT_UNAVAILABLE
