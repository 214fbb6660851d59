"""Memory of the simulated NPU: what is held is counted, and what does not fit raises the plugin's words."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch_npu._native import native

MEBIBYTE = 1 << 20


@pytest.fixture
def small() -> Iterator[None]:
    """A device with 4 MiB beyond what is held now."""
    native.set_memory_bytes(torch.npu.memory_allocated() + 4 * MEBIBYTE)
    yield
    native.set_memory_bytes(0)


def check_what_is_allocated_is_counted_until_it_is_freed() -> None:
    before = torch.npu.memory_allocated()
    held = torch.empty(MEBIBYTE, dtype=torch.uint8, device="npu")
    assert torch.npu.memory_allocated() == before + MEBIBYTE
    del held
    assert torch.npu.memory_allocated() == before


def check_results_of_operators_are_counted_too() -> None:
    left = torch.ones(256, 1024, device="npu")
    before = torch.npu.memory_allocated()
    found = left @ left.t()
    assert torch.npu.memory_allocated() == before + 256 * 256 * 4
    del found
    assert torch.npu.memory_allocated() == before


def check_the_peak_stays_until_it_is_reset() -> None:
    torch.npu.reset_peak_memory_stats()
    before = torch.npu.memory_allocated()
    torch.empty(MEBIBYTE, dtype=torch.uint8, device="npu")
    assert torch.npu.max_memory_allocated() == before + MEBIBYTE
    torch.npu.reset_peak_memory_stats()
    assert torch.npu.max_memory_allocated() == before
    assert torch.npu.memory_stats()["allocated_bytes.all.peak"] == before


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("way", ["empty", "operator", "copy"])
def check_what_does_not_fit_raises_and_leaves_the_device_as_it_was(way: str) -> None:
    row = torch.ones(1024, device="npu")
    large = torch.ones(2, MEBIBYTE)
    before = torch.npu.memory_allocated()
    with pytest.raises(RuntimeError, match=r"NPU out of memory. Tried to allocate .* MiB \(NPU 0; "):
        {
            "empty": lambda: torch.empty(5 * MEBIBYTE, dtype=torch.uint8, device="npu"),
            "operator": lambda: row[:, None] + row[None].repeat(1, 2),
            "copy": lambda: large.to("npu"),
        }[way]()
    assert torch.npu.memory_allocated() == before
    assert torch.npu.mem_get_info()[1] >= before
    assert float((row + 1).sum()) == 2048


def check_a_storage_grows_and_keeps_what_it_held() -> None:
    tensor = torch.arange(4.0, device="npu")
    tensor.resize_(8)
    assert tensor[:4].tolist() == [0, 1, 2, 3]
    assert tensor.untyped_storage().nbytes() == 32
    tensor.untyped_storage().resize_(64)
    assert tensor[:4].tolist() == [0, 1, 2, 3]


def check_an_output_that_is_too_small_is_resized() -> None:
    out = torch.empty(0, device="npu")
    before = torch.npu.memory_allocated()
    torch.add(torch.ones(3, 2, device="npu"), 1, out=out)
    assert out.tolist() == [[2, 2]] * 3
    assert torch.npu.memory_allocated() == before + 24


def check_pinned_memory_is_known_as_such() -> None:
    plain = torch.arange(6)
    pinned = plain.pin_memory()
    assert pinned.is_pinned()
    assert not plain.is_pinned()
    assert pinned[3:].is_pinned()
    assert pinned.to("npu", non_blocking=True).tolist() == plain.tolist()


def check_a_loader_pins_its_batches() -> None:
    loader = torch.utils.data.DataLoader(torch.arange(4), batch_size=2, pin_memory=True)
    assert [batch.is_pinned() for batch in loader] == [True, True]
