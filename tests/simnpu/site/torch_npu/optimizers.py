"""The fused AdamW as the real plugin has it: it knows nothing of the skip that torch leaves to it."""

from __future__ import annotations

from typing import Any

_KEPT: list[Any] = []
"""A library of kernels acts as long as somebody has it."""


def register() -> None:
    """Put the kernel in its place for the device. Source: op-plugin up to v2.10, `_fused_adamw_`."""
    import torch

    library = torch.library.Library("aten", "IMPL")
    library.impl("_fused_adamw_", _fused_adamw, "PrivateUse1")
    _KEPT.append(library)


def _fused_adamw(*lists: Any, grad_scale: Any = None, found_inf: Any = None, **named: Any) -> None:
    """lists: of parameters, gradients, and the state. `grad_scale` and `found_inf` are not looked at."""
    import torch

    on_cpu = [[tensor.cpu() for tensor in tensors] for tensors in lists]
    torch._fused_adamw_(*on_cpu, **named)
    for tensors, made in zip(lists, on_cpu, strict=True):
        for tensor, value in zip(tensors, made, strict=True):
            tensor.copy_(value)
