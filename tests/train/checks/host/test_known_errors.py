"""Vendors' codes and messages, as logs have them, lead to their cause; ordinary words do not."""

from __future__ import annotations

import pytest
from fake_roots import WITH_DEVICE, needs_of, output_of

from train.checks.host.faults import explain

CASES = [
    ("ascend", output_of("npu-smi-in-use"), "another container holds", 69),
    ("ascend", output_of("npu-smi-not-ready"), "not all in the container", 69),
    (
        "ascend",
        "ImportError: libascend_hal.so: cannot open shared object file: No such file or directory",
        "driver's libraries",
        69,
    ),
    ("ascend", "ImportError: libhccl.so: cannot open shared object file", "toolkit's environment", 69),
    ("ascend", "rtSetDevice failed, ErrCode=507033, desc=[device setup error]", "did not start", 69),
    ("ascend", "GetDeviceCount:Call drvGetDevNum, drvRetCode=87", "internal error", 69),
    ("ascend", "aclrtSynchronizeStream failed: 507015, aicore exception", "an operator failed", 70),
    ("ascend", "error code is 507054 HBM multi bit ECC", "memory or link", 69),
    (
        "ascend",
        "EI0002: [PID: 1] wait of the Notify register times out",
        "waited for a rank",
        70,
    ),
    (
        "ascend",
        "EI0006: [PID: 1] Getting socket times out. Reason: x",
        "find each other",
        69,
    ),
    ("ascend", "EJ0001: Failed to initialize the HCCP process.", "HCCL could not start", 69),
    ("cuda", output_of("nvidia-smi-mismatch"), "driver was changed", 69),
    ("cuda", output_of("nvidia-smi-one-lost"), "host lost the card", 69),
    (
        "cuda",
        "cudaGetDeviceCount() returned Error 803: system has unsupported display driver / cuda driver",
        "not of one driver",
        69,
    ),
    (
        "cuda",
        "CUDA unknown error - this may be due to an incorrectly set up environment",
        "/dev/nvidia-uvm",
        69,
    ),
    ("cuda", "cudaGetDeviceCount() returned Error 802: system not yet initialized", "fabric manager", 69),
    ("cuda", "CUDA error: no kernel image is available for execution on the device", "not built", 69),
    ("cuda", "CUDA error: an illegal memory access was encountered", "a kernel failed", 70),
    (
        "cuda",
        "too old; CUDA driver version is insufficient for CUDA runtime",
        "older than the CUDA",
        69,
    ),
    (
        "cuda",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.",
        "not loaded",
        69,
    ),
    ("cuda", "Failed to initialize NVML: Unknown Error", "lost its devices", 69),
    ("cuda", "Error 804: forward compatibility was attempted on non supported HW", "data-centre cards", 69),
    ("cuda", "RuntimeError: No CUDA GPUs are available", "was given no card", 69),
    ("cuda", "CUDA error: CUDA-capable device(s) is/are busy or unavailable", "exclusive mode", 69),
    ("cuda", "CUDA error: uncorrectable ECC error encountered", "memory has failed", 69),
    ("hygon", "OSError: librocm_smi64.so.2: cannot open shared object file", "torch does not load", 69),
    ("hygon", "RuntimeError: No matching libraries found for flash_attn_2_cuda*.so", "flash-attn", 70),
    ("hygon", "Unable to open /dev/kfd read-write: Permission denied", "no group that owns", 69),
    ("hygon", "RuntimeError: HIP error: invalid device function", "not built for this card", 69),
    ("hygon", "RuntimeError: No HIP GPUs are available", "was given no card", 69),
    ("hygon", "HIP error: hipErrorInsufficientDriver", "older than this DTK", 69),
    ("hygon", "HSA_STATUS_ERROR_OUT_OF_RESOURCES: The runtime failed to allocate", "no memory, queue", 69),
    ("hygon", "Memory access fault by GPU node-1 (Agent handle: 0x5) on address", "a kernel failed", 70),
]


@pytest.mark.parametrize(("image", "text", "cause", "code"), CASES)
def test_a_vendor_s_words_lead_to_their_cause(image: str, text: str, cause: str, code: int) -> None:
    known = explain(needs_of(image).errors, text)
    assert [(cause in one.cause, one.exit_code) for one in known] == [(True, code)], known
    assert known[0].cure


def test_each_row_of_each_table_has_a_case() -> None:
    missed = [
        error["pattern"]
        for image in ("ascend", "cuda", "hygon")
        for error in needs_of(image).errors
        if not any(name == image and explain([error], text) for name, text, *_ in CASES)
    ]
    assert missed == []


@pytest.mark.parametrize("image", WITH_DEVICE)
@pytest.mark.parametrize(
    "text",
    [
        "step 507015: loss 1.5",
        "loss 0.507018 after 803 steps",
        "ValueError: unknown error in row 999",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (803x999 and 35x2)",
    ],
)
def test_ordinary_words_are_no_known_error(image: str, text: str) -> None:
    assert explain(needs_of(image).errors, text) == []
