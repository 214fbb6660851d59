"""Views share memory with what they are views of: what is written through one is seen in the other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch_npu._native import native

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "view": lambda x: x.view(6, 4),
    "reshape": lambda x: x.reshape(2, 12),
    "view of bytes": lambda x: x.view(torch.int32),
    "as_strided": lambda x: x.as_strided((2, 3), (1, 5), 2),
    "unfold": lambda x: x.unfold(1, 2, 2),
    "transpose": lambda x: x.transpose(0, 1),
    "permute": lambda x: x.view(2, 2, 6).permute(2, 0, 1),
    "select": lambda x: x[2],
    "slice": lambda x: x[1:3, ::2],
    "narrow": lambda x: x.narrow(1, 1, 3),
    "squeeze": lambda x: x.unsqueeze(1).squeeze(1),
    "diagonal": lambda x: x.diagonal(),
    "split": lambda x: x.split(2, 1)[1],
    "chunk": lambda x: x.chunk(3, 1)[2],
    "unbind": lambda x: x.unbind(1)[4],
    "unflatten": lambda x: x.unflatten(1, (2, 3)),
    "movedim": lambda x: x.movedim(0, 1),
    "real": lambda x: torch.view_as_complex(x.view(4, 3, 2)).real,
    "complex and back": lambda x: torch.view_as_real(torch.view_as_complex(x.view(4, 3, 2)))[..., 1],
    "detach": lambda x: x.detach(),
    "set_": lambda x: torch.empty(0, device=x.device).set_(x.untyped_storage(), 3, (2, 2), (6, 1)),
    "view of a transposed": lambda x: x.t().unsqueeze(0).flatten(0, 1),
}


@pytest.mark.parametrize("name", VIEWS)
def check_what_is_written_through_a_view_is_in_the_tensor(name: str) -> None:
    host = torch.arange(24.0).view(4, 6)
    device = host.to("npu")
    for tensor in (host, device):
        VIEWS[name](tensor).add_(7)
    assert device.tolist() == host.tolist()
    assert device.tolist() != torch.arange(24.0).view(4, 6).tolist()


@pytest.mark.parametrize("name", VIEWS)
def check_a_view_takes_no_memory_and_no_launch(name: str) -> None:
    device = torch.arange(24.0).view(4, 6).to("npu")
    before = torch.npu.memory_allocated()
    native.reset_launches()
    view = VIEWS[name](device)
    assert native.launches() == {}
    assert torch.npu.memory_allocated() == before
    assert view.untyped_storage().data_ptr() == device.untyped_storage().data_ptr()


def check_a_view_operator_without_a_kernel_is_refused() -> None:
    """The host's kernel would give a view of memory that nobody keeps."""
    library = torch.library.Library("simnpu_check", "DEF")
    library.define("other_view(Tensor x) -> Tensor")
    library.impl("other_view", lambda x: x.view(-1), "CPU")
    with pytest.raises(RuntimeError, match="gives a view, and has no kernel of its own"):
        torch.ops.simnpu_check.other_view(torch.ones(2, 2, device="npu"))


def check_gradients_pass_through_views() -> None:
    found = {}
    for device in ("cpu", "npu"):
        x = torch.arange(24.0).view(4, 6).to(device).requires_grad_()
        (x.unfold(1, 3, 2).square().sum() + x.t()[1:4].reshape(-1)[::3].exp().sum() * 1e-6).backward()
        assert x.grad is not None
        found[device] = x.grad.tolist()
    assert found["npu"] == found["cpu"]


def check_writes_within_a_graph_are_seen_by_autograd() -> None:
    x = torch.ones(3, device="npu", requires_grad=True)
    y = x * 2
    z = y.exp()
    z[0] = 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()
