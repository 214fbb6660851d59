"""Devices that compute wrong, played by the CPU: what a probe must find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")


def asked(**fields: Any) -> Any:
    """What a recipe asks of its device, all of it `auto`."""
    names = ("device", "precision", "attn_implementation", "pinned_memory", "loss_scale", "probe")
    return SimpleNamespace(**(dict.fromkeys(names, "auto") | fields))


class Losing(TorchDispatchMode):
    """Products of a dtype lose bits of their mantissa."""

    def __init__(self, dtype: torch.dtype, bits: int) -> None:
        super().__init__()
        self.dtype, self.mask = dtype, -(1 << bits)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in PRODUCTS and made.dtype == self.dtype:
            whole = {2: torch.int16, 4: torch.int32}[made.element_size()]
            return (made.view(whole) & self.mask).view(self.dtype)
        return made


class Lacking(TorchDispatchMode):
    """There is no kernel for operators of these names."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = names

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in self.names:
            raise NotImplementedError(f"Could not run 'aten::{func.overloadpacket.__name__}'")
        return func(*args, **(kwargs or {}))


@contextmanager
def attending(change: Callable[..., Any]) -> Iterator[None]:
    """torch's attention goes through `change(original, query, key, value, mask, **named)`."""
    from torch.nn import functional

    from train.loop import attention

    original = functional.scaled_dot_product_attention

    def changed(query: Any, key: Any, value: Any, attn_mask: Any = None, **named: Any) -> Any:
        return change(original, query, key, value, attn_mask, **named)

    functional.scaled_dot_product_attention = attention.scaled_dot_product_attention = changed
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = attention.scaled_dot_product_attention = original
        torch.backends.cuda.enable_flash_sdp(True)


def without_flash_wheel(original: Any, query: Any, key: Any, value: Any, mask: Any, **named: Any) -> Any:
    """A build of torch that raises where unmasked 16-bit attention needs a wheel that is not there."""
    half = query.dtype in (torch.bfloat16, torch.float16)
    if mask is None and half and torch.backends.cuda.flash_sdp_enabled():
        raise RuntimeError("No matching libraries found for flash_attn_2_cuda*.so")
    return original(query, key, value, attn_mask=mask, **named)


def not_a_number(original: Any, query: Any, key: Any, value: Any, mask: Any, **named: Any) -> Any:
    """Attention whose masked form is no number in one place."""
    found = original(query, key, value, attn_mask=mask, **named)
    return found if mask is None else found.index_fill(2, torch.tensor([3]), float("nan"))


def ignoring_masks(original: Any, query: Any, key: Any, value: Any, mask: Any, **named: Any) -> Any:
    """Attention that is causal whatever the mask says."""
    return original(query, key, value, **(named | {"is_causal": True}))
