"""Copies, files and operators: the figures are the host's, and devices do not mix."""

from __future__ import annotations

import copy
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_npu._native import native

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.uint8, torch.float64]


@pytest.mark.parametrize("dtype", DTYPES)
def check_a_tensor_comes_back_as_it_went(dtype: torch.dtype) -> None:
    host = (torch.arange(24).view(4, 6) % 5).to(dtype)
    assert torch.equal(host.to("npu").cpu(), host)
    assert torch.equal(host.t().to("npu").t().cpu(), host)
    assert torch.equal(host[:, ::2].to("npu").cpu(), host[:, ::2])


@pytest.mark.parametrize("target", ["npu", "cpu", None])
def check_torch_save_and_load(target: str | None, tmp_path: Path) -> None:
    content = {"weight": torch.randn(3, 4, device="npu"), "half": torch.randn(2, device="npu").half()}
    torch.save(content, tmp_path / "content.pt")
    found = torch.load(tmp_path / "content.pt", map_location=target, weights_only=True)
    assert found["weight"].device.type == (target or "npu")
    for name, tensor in content.items():
        assert torch.equal(found[name].cpu(), tensor.cpu())


def check_a_view_and_its_storage_are_saved_once() -> None:
    whole = torch.arange(100.0, device="npu")
    file = io.BytesIO()
    torch.save([whole, whole[10:20]], file)
    file.seek(0)
    first, second = torch.load(file, weights_only=True)
    second.zero_()
    assert float(first.sum()) == float(whole.sum()) - sum(range(10, 20))


def check_a_deep_copy_shares_nothing() -> None:
    module = torch.nn.Linear(2, 2).to("npu")
    copied = copy.deepcopy(module)
    assert copied.weight.device.type == "npu"
    with torch.no_grad():
        copied.weight.zero_()
    assert bool((module.weight != 0).all())


def check_storages_move_between_devices() -> None:
    tensor = torch.arange(5.0, device="npu")
    assert torch.frombuffer(bytearray(tensor.untyped_storage().cpu()), dtype=torch.float32).tolist() == [
        *range(5)
    ]
    assert tensor.is_npu
    assert torch.arange(3).npu().device.type == "npu"


def check_tensors_of_host_and_device_do_not_mix() -> None:
    device, host = torch.ones(3, device="npu"), torch.ones(3)
    with pytest.raises(RuntimeError, match="same device"):
        device + host
    with pytest.raises(RuntimeError, match="same device"):
        torch.nn.functional.linear(torch.ones(2, 3, device="npu"), torch.ones(3, 3))
    assert (device + torch.tensor(2.0)).tolist() == [3, 3, 3]
    assert device[torch.tensor([0, 2])].tolist() == [1, 1]


OPERATIONS: dict[str, Any] = {
    "softmax": lambda x: x.softmax(-1),
    "matmul": lambda x: x @ x.mT,
    "cross entropy": lambda x: torch.nn.functional.cross_entropy(x, torch.arange(4, device=x.device)),
    "layer norm": lambda x: torch.nn.functional.layer_norm(x, (6,)),
    "inverse": lambda x: torch.linalg.inv(x @ x.mT + 9 * torch.eye(4, device=x.device)),
    "solve": lambda x: torch.linalg.solve(x @ x.mT + 9 * torch.eye(4, device=x.device), x),
    "gather": lambda x: x.gather(1, torch.zeros(4, 1, dtype=torch.int64, device=x.device)),
    "index": lambda x: x[torch.tensor([2, 0], device=x.device)],
    "where": lambda x: torch.where(x > 0, x, x.exp()),
    "cat": lambda x: torch.cat([x, x.cos()], 1),
    "sort": lambda x: x.sort(1).values,
    "norm": torch.linalg.vector_norm,
    "cumsum": lambda x: x.cumsum(0),
    "var": lambda x: x.var(1),
    "silu": torch.nn.functional.silu,
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
}


@pytest.mark.parametrize("name", OPERATIONS)
def check_an_operator_and_its_gradient_are_the_host_s(name: str) -> None:
    found = {}
    for device in ("cpu", "npu"):
        x = torch.randn(4, 6, generator=torch.Generator().manual_seed(3)).to(device).requires_grad_()
        result = OPERATIONS[name](x)
        result.square().sum().backward()
        assert x.grad is not None
        assert result.device.type == device
        found[device] = (result.detach().cpu(), x.grad.cpu())
    assert all(torch.equal(left, right) for left, right in zip(found["cpu"], found["npu"], strict=True))


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}, {"foreach": False}])
def check_adamw_takes_the_host_s_steps(options: dict[str, bool]) -> None:
    found = {}
    for device in ("cpu", "npu"):
        weight = torch.nn.Parameter(torch.arange(6.0).to(device))
        optimizer = torch.optim.AdamW([weight], lr=0.1, **options)
        for _ in range(3):
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()
        found[device] = weight.detach().cpu()
    assert torch.allclose(found["cpu"], found["npu"], rtol=0, atol=1e-6)


def check_launches_are_counted_by_operator() -> None:
    x = torch.ones(2, 3, device="npu")
    native.reset_launches()
    (x @ x.t()).mul_(2).view(-1).sum().item()
    names = ["_local_scalar_dense", "mm.out", "mul_.Tensor", "sum.IntList_out"]
    assert native.launches() == dict.fromkeys(names, 1)


def check_autograd_s_own_thread_works_on_the_device() -> None:
    x = torch.ones(3, device="npu", requires_grad=True)
    x.register_hook(lambda gradient: gradient * torch.npu.current_device())
    with torch.npu.device(0):
        (x * 2).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 0, 0]
