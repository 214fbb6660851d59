"""The simulated NPU in the place of Huawei's plugin: registers `npu` with torch as that one does.

SIMNPU_LIBRARY names the compiled part (tests/simnpu/compiled.py makes it); without it the import fails as the
real one does where the driver is missing.
"""

from __future__ import annotations

import os
from typing import Any


def _import_torch() -> Any:
    """torch, without its autoload: that would import this module again before it is whole."""
    before = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    try:
        import torch
    finally:
        if before is None:
            del os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"]
        else:
            os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = before
    return torch


def _register() -> None:
    torch = _import_torch()
    from torch_npu._native import native

    torch.utils.rename_privateuse1_backend("npu")
    from torch_npu import npu as module

    torch._register_device_module("npu", module)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    from torch_npu import distributed

    distributed.register()
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    register_optimizer_step_pre_hook(lambda *_: native.begin_step())


def _autoload() -> None:
    """The entry point of `torch.backends`: importing this module has done all."""


def npu_fusion_attention(*arguments: Any, **named: Any) -> Any:
    """transformers imports it when an NPU is there; no test calls it."""
    raise NotImplementedError("the simulated NPU has no npu_fusion_attention: use sdpa or eager")


npu_rotary_mul = npu_fusion_attention

_register()
