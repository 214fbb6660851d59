"""Memory of a device, in bytes. Nothing is cached, so what is reserved is what is allocated."""

from __future__ import annotations

from typing import Any

from torch_npu._native import native


def _figures(device: Any) -> dict[str, int]:
    from torch_npu.npu import index_of

    return native.memory(index_of(device))


def memory_allocated(device: Any = None) -> int:
    return _figures(device)["allocated"]


def max_memory_allocated(device: Any = None) -> int:
    return _figures(device)["peak"]


memory_reserved = memory_allocated
max_memory_reserved = max_memory_allocated


def memory_stats(device: Any = None) -> dict[str, int]:
    found = _figures(device)
    return {
        "allocated_bytes.all.current": found["allocated"],
        "allocated_bytes.all.peak": found["peak"],
        "allocation.all.allocated": found["num_allocations"],
    }


def reset_peak_memory_stats(device: Any = None) -> None:
    from torch_npu.npu import index_of

    native.reset_peak(index_of(device))


reset_max_memory_allocated = reset_peak_memory_stats


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total."""
    total = native.total_memory()
    return total - memory_allocated(device), total


def empty_cache() -> None:
    """Nothing is cached."""
