"""Fused attention: one launch, the host's figures, and its faults one by one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch_npu._native import native

FUSED = "_scaled_dot_product_fused_attention_overrideable"


@pytest.fixture
def wrong(request: pytest.FixtureRequest) -> Iterator[str]:
    native.set_sdpa_nan(request.param)
    yield request.param
    native.set_sdpa_nan("")


def attend(device: str, heads: int = 4, groups: int = 4, **options: Any) -> list[torch.Tensor]:
    """The output, and the gradients of query, key and value."""
    draw = torch.Generator().manual_seed(0)
    shapes = [(2, heads, 5, 8), (2, groups, 5, 8), (2, groups, 5, 8)]
    inputs = [torch.randn(shape, generator=draw).to(device).requires_grad_() for shape in shapes]
    moved = {name: one.to(device) if torch.is_tensor(one) else one for name, one in options.items()}
    output = scaled_dot_product_attention(*inputs, **moved)
    gradients = torch.autograd.grad(output.square().sum(), inputs)
    return [one.detach().cpu() for one in (output, *gradients)]


MASK = torch.ones(5, 5, dtype=torch.bool).tril()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"attn_mask": MASK},
        {"attn_mask": torch.zeros(2, 1, 5, 5).masked_fill(~MASK, -1e9)},
        {"is_causal": True, "groups": 2, "enable_gqa": True},
        {"attn_mask": MASK, "groups": 1, "enable_gqa": True, "scale": 0.3},
    ],
    ids=str,
)
def check_attention_and_its_gradients_are_the_host_s(options: dict[str, Any]) -> None:
    native.reset_launches()
    found = attend("npu", **options)
    assert native.launches()[FUSED] == 1
    assert native.launches()[f"{FUSED}_backward"] == 1
    for left, right in zip(attend("cpu", **options), found, strict=True):
        assert torch.allclose(left, right, rtol=1e-5, atol=1e-6)


def check_attention_with_dropout_takes_the_way_of_single_operators() -> None:
    native.reset_launches()
    attend("npu", dropout_p=0.5)
    assert FUSED not in native.launches()
    assert native.launches()["native_dropout"] == 1


@pytest.mark.parametrize("wrong", ["forward", "masked", "backward"], indirect=True)
def check_each_fault_spoils_what_it_names(wrong: str) -> None:
    plain = [bool(one.isnan().any()) for one in attend("npu", is_causal=True)]
    masked = [bool(one.isnan().any()) for one in attend("npu", attn_mask=MASK)]
    assert plain[0] == (wrong == "forward")
    assert masked[0] == (wrong in ("forward", "masked"))
    assert plain[1] == (wrong in ("forward", "backward"))
