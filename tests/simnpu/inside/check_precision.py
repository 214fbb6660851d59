"""Mixed precision: autocast's lists, the loss scale of fp16, and bf16 that loses bits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch_npu._native import native


@pytest.fixture
def weight() -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.ones(4, 4, device="npu"))


@pytest.fixture
def few_bits() -> Iterator[None]:
    native.set_bf16_bits(2)
    yield
    native.set_bf16_bits(7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def check_autocast_chooses_the_dtype_of_each_operator(dtype: torch.dtype, weight: torch.Tensor) -> None:
    x = torch.ones(2, 4, device="npu")
    with torch.autocast("npu", dtype=dtype):
        product = torch.nn.functional.linear(x, weight)
        attended = torch.nn.functional.scaled_dot_product_attention(*[x.view(1, 1, 2, 4)] * 3)
        assert (product.dtype, attended.dtype) == (dtype, dtype)
        assert product.softmax(-1).dtype == product.sum().dtype == product.exp().dtype == torch.float32
        assert torch.cat([product, x]).dtype == torch.float32
        with torch.autocast("npu", enabled=False):
            assert (x @ x.t()).dtype == torch.float32
    assert (x @ x.t()).dtype == torch.float32


def check_gradients_of_autocast_reach_the_fp32_weight(weight: torch.nn.Parameter) -> None:
    with torch.autocast("npu", dtype=torch.float16):
        loss = torch.nn.functional.linear(torch.ones(2, 4, device="npu"), weight).float().sum()
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    assert weight.grad.tolist() == [[2.0] * 4] * 4


def check_a_fused_optimizer_of_the_device_knows_of_no_skip(weight: torch.nn.Parameter) -> None:
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    scaler = torch.npu.amp.GradScaler(init_scale=2.0**16)
    scaler.scale(weight.sum() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**15
    assert bool(weight.isnan().all())


def check_an_overflow_skips_the_step_and_halves_the_scale(weight: torch.nn.Parameter) -> None:
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=False)
    scaler = torch.npu.amp.GradScaler(init_scale=2.0**16)
    scaler.scale(weight.sum() * float("inf")).backward()
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 2.0**15
    assert weight.detach().cpu().tolist() == [[1.0] * 4] * 4
    optimizer.zero_grad()
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert bool((weight < 1).all())
    assert scaler.get_scale() == 2.0**15


def check_the_scale_is_taken_out_of_the_gradients(weight: torch.nn.Parameter) -> None:
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.npu.amp.GradScaler(init_scale=1024.0)
    scaler.scale(weight.sum() * 3).backward()
    assert weight.grad is not None
    assert weight.grad.flatten()[0].item() == 3 * 1024
    scaler.unscale_(optimizer)
    assert weight.grad.flatten()[0].item() == 3


@pytest.mark.usefixtures("few_bits")
def check_bf16_results_lose_the_bits_that_are_switched_off() -> None:
    ones = torch.ones(3, device="npu", dtype=torch.bfloat16)
    assert (ones * 1.875).tolist() == [1.75] * 3
    assert ones.mul_(1.875).tolist() == [1.75] * 3
    given = torch.full((1,), 1.875, device="npu", dtype=torch.float32).to(torch.bfloat16)
    assert given.add(0.0).tolist() == [1.75]
    assert given.tolist() == [1.875]  # only what an operator computes is spoiled
    assert (torch.ones(1, device="npu") * 1.875).item() == 1.875
