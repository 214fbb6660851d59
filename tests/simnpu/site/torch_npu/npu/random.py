"""The generators of the devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from torch_npu._native import native


def _generator(device: Any) -> torch.Generator:
    from torch_npu.npu import index_of

    return native.default_generator(index_of(device))


def _all() -> list[torch.Generator]:
    return [native.default_generator(index) for index in range(native.device_count())]


def get_rng_state(device: Any = "npu") -> torch.Tensor:
    """A ByteTensor on the host."""
    return _generator(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "npu") -> None:
    _generator(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [generator.get_state() for generator in _all()]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    for generator, state in zip(_all(), new_states, strict=True):
        generator.set_state(state)


def manual_seed(seed: int) -> None:
    _generator(None).manual_seed(seed)


def manual_seed_all(seed: int) -> None:
    for generator in _all():
        generator.manual_seed(seed)


def seed() -> int:
    return _generator(None).seed()


def initial_seed() -> int:
    return _generator(None).initial_seed()
