"""torch.npu: the functions that torch, transformers, accelerate and PEFT call on a device's module."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from torch_npu._native import native
from torch_npu.npu import amp
from torch_npu.npu.memory import (
    empty_cache,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    reset_max_memory_allocated,
    reset_peak_memory_stats,
)
from torch_npu.npu.random import (
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    set_rng_state,
    set_rng_state_all,
)

__all__ = [
    "amp",
    "empty_cache",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_max_memory_allocated",
    "reset_peak_memory_stats",
    "seed",
    "set_rng_state",
    "set_rng_state_all",
]

_initialized = True  # torch's checkpointing keeps the random states of initialised devices alone
Stream = torch.Stream


def init() -> None:
    """Nothing is left to do."""


def is_initialized() -> bool:
    return True


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    return native.device_count()


def is_available() -> bool:
    return device_count() > 0


def current_device() -> int:
    return native.current_device()


def index_of(device: Any) -> int:
    """The index of a device in any of its forms; the current one's where none is named."""
    if device is None or isinstance(device, int):
        return current_device() if device is None else device
    index = torch.device(device).index
    return current_device() if index is None else index


def set_device(device: Any) -> None:
    native.exchange_device(index_of(device))


@contextlib.contextmanager
def device(device: Any) -> Iterator[None]:
    """Inside, `device` is the current one; a negative index changes nothing."""
    index = index_of(device)
    before = native.exchange_device(index) if index >= 0 else None
    try:
        yield
    finally:
        if before is not None:
            native.exchange_device(before)


def synchronize(device: Any = None) -> None:
    native.synchronize()


def get_device_name(device: Any = None) -> str:
    return "simulated NPU"


def get_device_properties(device: Any = None) -> SimpleNamespace:
    return SimpleNamespace(name=get_device_name(), total_memory=native.total_memory())


def is_bf16_supported() -> bool:
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


class Event(torch.Event):
    """An event that may be made without naming the device."""

    def __new__(cls, enable_timing: bool = False, **named: Any) -> Any:
        return super().__new__(cls, "npu", enable_timing=enable_timing, **named)


def current_stream(device: Any = None) -> torch.Stream:
    return torch.accelerator.current_stream(index_of(device))


def default_stream(device: Any = None) -> torch.Stream:
    return torch.Stream(stream_id=0, device_index=index_of(device), device_type=torch.device("npu").type)


@contextlib.contextmanager
def stream(stream: torch.Stream) -> Iterator[None]:
    """Inside, `stream` is the current one of its device."""
    before = current_stream(stream.device)
    torch.accelerator.set_stream(stream)
    try:
        yield
    finally:
        torch.accelerator.set_stream(before)
