"""torch.npu.amp: mixed precision under the names that accelerate asks for."""

from __future__ import annotations

from typing import Any

import torch


class GradScaler(torch.amp.GradScaler):
    """The dynamic loss scale of fp16."""

    def __init__(self, **named: Any) -> None:
        super().__init__("npu", **named)


class autocast(torch.autocast):  # noqa: N801 - the name of torch.cuda.amp
    def __init__(self, **named: Any) -> None:
        super().__init__("npu", **named)
