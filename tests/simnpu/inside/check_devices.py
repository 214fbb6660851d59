"""Streams, events, two devices, and the device that fails. This process has two devices."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from torch_npu._native import native


@pytest.fixture
def missing(request: pytest.FixtureRequest) -> Iterator[str]:
    native.set_missing([request.param])
    yield request.param
    native.set_missing([])


def check_torch_knows_the_device() -> None:
    assert torch.npu.is_available()
    assert torch.accelerator.current_accelerator() == torch.device("npu")
    assert torch.npu.device_count() == torch.accelerator.device_count() == 2
    assert str(torch.ones(1, device="npu").device) == "npu:0"
    assert torch.npu.get_device_properties(0).total_memory > 0


def check_devices_have_their_own_memory_and_numbers() -> None:
    before = torch.npu.memory_allocated(0)
    with torch.npu.device(1):
        held = torch.ones(1024, device="npu")
        assert torch.npu.current_device() == 1
    assert torch.npu.current_device() == 0
    assert held.device.index == 1
    assert (held + 1).device.index == 1
    assert torch.npu.memory_allocated(1) >= 4096
    assert torch.npu.memory_allocated(0) == before
    assert held.to("npu:0").device.index == 0
    torch.npu.manual_seed_all(3)
    first = [torch.randn(3, device=f"npu:{index}").tolist() for index in (0, 1)]
    assert first[0] == first[1]
    torch.randn(3, device="npu:1")
    assert torch.randn(3, device="npu:0").tolist() != torch.randn(3, device="npu:1").tolist()


def check_tensors_of_two_devices_do_not_mix() -> None:
    with pytest.raises(RuntimeError, match="same device"):
        torch.ones(2, device="npu:0") + torch.ones(2, device="npu:1")
    with pytest.raises(RuntimeError, match="there is no device 2"):
        torch.ones(2, device="npu:2")


def check_backward_runs_on_the_device_of_its_tensors() -> None:
    x = torch.ones(2, device="npu:1", requires_grad=True)
    (x * 3).sum().backward()
    assert x.grad is not None
    assert x.grad.device.index == 1


def check_events_measure_and_streams_change() -> None:
    start, end = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    start.record()
    torch.ones(100, device="npu").sum()
    end.record()
    end.synchronize()
    assert start.elapsed_time(end) > 0
    before = torch.npu.current_stream()
    other = torch.npu.Stream(device="npu")
    with torch.npu.stream(other):
        assert torch.npu.current_stream() == other != before
        torch.ones(2, device="npu").record_stream(other)
    assert torch.npu.current_stream() == before
    torch.npu.synchronize()


@pytest.mark.parametrize("missing", ["linalg_inv_ex", "silu", "_foreach_norm"], indirect=True)
def check_a_missing_operator_says_its_name(missing: str) -> None:
    x = torch.eye(3, device="npu")
    calls = {
        "linalg_inv_ex": lambda: torch.linalg.inv_ex(x),
        "silu": lambda: torch.nn.functional.silu(x),
    }
    if missing not in calls:
        assert torch.nn.functional.silu(x).shape == (3, 3)
        return
    with pytest.raises(NotImplementedError, match=f"Could not run 'aten::{missing}"):
        calls[missing]()


LOSE = """
import torch
weight = torch.nn.Parameter(torch.ones(2, device="npu"))
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in (1, 2, 3):
    weight.sum().backward()
    print(step, flush=True)
    optimizer.step()
"""


def ends(script: str, **variables: str) -> tuple[str, str]:
    """What a script prints in a process of its own, and the last words of its error."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | variables,
    )
    return done.stdout, done.stderr


def check_a_lost_device_answers_no_more_from_its_step_on() -> None:
    out, errors = ends(LOSE, SIMNPU_LOST_AT_STEP="2")
    assert out.split() == ["1", "2"]
    assert "error code is 507010" in errors
    assert "lost heartbeat" in errors


def check_pinned_memory_fails_from_its_step_on() -> None:
    script = LOSE.replace("    print", "    torch.ones(2).pin_memory()\n    print")
    out, errors = ends(script, SIMNPU_PINNED_FAILS_AT_STEP="3")
    assert out.split() == ["1", "2"]
    assert "unrecognized error" in errors


def check_visible_devices_are_those_of_the_variable() -> None:
    script = "import torch; print(torch.npu.device_count())"
    assert ends(script, ASCEND_RT_VISIBLE_DEVICES="1")[0].strip() == "1"
    assert ends(script, ASCEND_RT_VISIBLE_DEVICES="0,1")[0].strip() == "2"
    assert ends(script, ASCEND_RT_VISIBLE_DEVICES="")[0].strip() == "0"
