"""A device's fault ends a command with words and an exit code, never with a traceback."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_roots import RENDERED

from train import cli, commands
from train.device_faults import told, told_as
from train.errors import EXIT_TRAINING, EXIT_UNAVAILABLE, UserError
from train.image import VARIABLE

LOST = """synchronize:build/CMakeFiles/torch_npu.dir/compiler_depend.ts:361 NPU function error: \
c10_npu::acl::AclrtSynchronizeStreamWithTimeout(stream()), error code is 507011
[ERROR] ERR00100 PTA call acl api failed"""
VECTOR_CORE = """operator():build/CMakeFiles/torch_npu.dir/compiler_depend.ts:25 NPU function error: \
c10_npu::acl::AclrtSynchronizeStreamWithTimeout(copy_stream), error code is 507035
[ERROR] 2025-04-29-18:46:11 (PID:1066924, Device:1, RankID:-1) ERR00100 PTA call acl api failed
[Error]: The vector core execution is abnormal."""
ILLEGAL = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be asynchronously"
HALF = "\"addmm_impl_cpu_\" not implemented for 'Half'"
MISSING = "Could not run 'aten::linalg_inv_ex.inverse' with arguments from the 'NPU' backend."
FULL = "NPU out of memory. Tried to allocate 52.00 MiB (NPU 0; 60.96 GiB total capacity)"
WORKSPACE = """NPU function error: call aclnnMoeDistributeDispatchV2 failed, error code is 207001
[Error]: Failed to apply for memory.
EL0004: [PID: 316198] Failed to allocate memory."""
GLOO = """[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:537] Read error [172.18.0.3]:13521: \
Connection reset by peer. This is typically caused by a remote worker hanging or bugs in the application."""
# NVIDIA/nccl#934
NCCL = """NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1347, remote process exited or \
there was a network error, NCCL version 2.18.5
ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."""
STORE = "failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?"
PINNED = "NPU function error: pinned memory: unrecognized error"


@pytest.mark.parametrize(
    ("text", "message", "code"),
    [
        (LOST, "device: it failed: .*507011", EXIT_UNAVAILABLE),
        (VECTOR_CORE, "device: it failed: .*vector core execution is abnormal", EXIT_UNAVAILABLE),
        (ILLEGAL, "device: it failed: CUDA error: an illegal memory access", EXIT_UNAVAILABLE),
        (HALF, "device: an operator is missing: .*'Half'", EXIT_UNAVAILABLE),
        (MISSING, "device: an operator is missing: .*aten::linalg_inv_ex", EXIT_UNAVAILABLE),
        (GLOO, "to another process was lost: .*13521: Connection reset by peer\nhint", EXIT_TRAINING),
        (NCCL, "the connection to another process was lost: .*ncclRemoteError", EXIT_TRAINING),
        (STORE, "the connection to another process was lost: failed to recv", EXIT_TRAINING),
        (FULL, "out of memory: NPU out of memory", EXIT_TRAINING),
        (WORKSPACE, "out of memory: .*207001", EXIT_TRAINING),
        (PINNED, "pinned memory: the device fails with it", EXIT_UNAVAILABLE),
    ],
)
def test_a_device_s_fault_is_named_in_one_line(text: str, message: str, code: int) -> None:
    with pytest.raises(UserError, match=message) as caught, told():
        raise RuntimeError(text)
    assert caught.value.exit_code == code
    assert caught.value.hint
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("image", "text", "message", "code"),
    [
        (
            "ascend",
            VECTOR_CORE,
            "device: an operator failed or timed out on the card: .*507035",
            EXIT_TRAINING,
        ),
        ("cuda", ILLEGAL, "device: a kernel failed on the card: CUDA error", EXIT_TRAINING),
        ("cuda", "No CUDA GPUs are available", "device: the container was given no card", EXIT_UNAVAILABLE),
        ("hygon", ILLEGAL, "device: it failed: CUDA error", EXIT_UNAVAILABLE),
        ("cuda", FULL, "out of memory", EXIT_TRAINING),
    ],
)
def test_what_the_image_knows_of_its_vendor_s_errors_is_said(
    monkeypatch: pytest.MonkeyPatch, image: str, text: str, message: str, code: int
) -> None:
    monkeypatch.setenv(VARIABLE, str(RENDERED / image / "build-info.json"))
    with pytest.raises(UserError, match=message) as caught, told():
        raise RuntimeError(text)
    assert caught.value.exit_code == code
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("fault", [RuntimeError("mat1 and mat2 shapes cannot be multiplied"), KeyError("x")])
def test_other_errors_pass_as_they_are(fault: Exception) -> None:
    with pytest.raises(type(fault)) as caught, told():
        raise fault
    assert caught.value is fault


@pytest.mark.parametrize(
    ("steps", "words"), [([], "begins again, no checkpoint"), ([2, 10], "goes on after step 10")]
)
def test_the_hint_says_where_a_run_goes_on(tmp_path: Path, steps: list[int], words: str) -> None:
    for step in steps:
        (tmp_path / "checkpoints" / f"step-{step}").mkdir(parents=True)
    for text in (LOST, PINNED):
        error = told_as(RuntimeError(text), tmp_path)
        assert error
        assert words in error.hint


def test_a_command_ends_with_the_code_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fails(*_: object) -> None:
        raise NotImplementedError(MISSING)

    monkeypatch.setattr(commands, "_resolved", fails)
    code = cli.call(["merge", "--model", "m", "--adapter", "a", "--output", str(tmp_path / "x")])
    assert code == EXIT_UNAVAILABLE
    errors = capsys.readouterr().err
    assert errors.startswith("error: device: an operator is missing: Could not run 'aten::linalg_inv_ex")
    assert "Traceback" not in errors
