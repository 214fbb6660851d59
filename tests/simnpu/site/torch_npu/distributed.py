"""The group `hccl`: processes with a simulated device each, whose tensors gloo sums on the host."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch import distributed
from torch.utils._pytree import tree_leaves, tree_map_only

COLLECTIVES = {
    "allreduce": "allreduce",
    "broadcast": "broadcast",
    "allgather": "allgather",
    "_allgather_base": "_allgather_base",
    "all_gather_single": "_allgather_base",  # its name from torch 2.13 on
}
"""Those of a ProcessGroup that training calls -> gloo's name of each; all write their first argument. Any
other raises, as torch does where a group has none."""


class Group(distributed.ProcessGroup):
    """A collective takes its tensors to the host, waits there for gloo, and brings back what was written."""

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self.gloo = distributed.ProcessGroupGloo(store, rank, size, timeout)

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        return "hccl"

    def barrier(self, opts: Any) -> Any:
        return self.gloo.barrier(opts)


def _collective(name: str) -> Any:
    def run(group: Group, *arguments: Any) -> Any:
        with torch.no_grad():
            on_host = tree_map_only(torch.Tensor, lambda tensor: tensor.cpu(), arguments)
            getattr(group.gloo, name)(*on_host).wait()
            for tensor, found in zip(tree_leaves(arguments[0]), tree_leaves(on_host[0]), strict=True):
                tensor.copy_(found)
        return _done(arguments[0])

    return run


def _done(written: Any) -> Any:
    """Work that has ended, with the tensors that it wrote: DDP reads its gradients from there."""
    devices = {tensor.device for tensor in tree_leaves(written)} - {torch.device("cpu")}
    future: torch.futures.Future[Any] = torch.futures.Future(devices=list(devices))
    future.set_result(written)
    return torch._C._distributed_c10d._create_work_from_future(future)


for _name, _of_gloo in COLLECTIVES.items():
    setattr(Group, _name, _collective(_of_gloo))


def register() -> None:
    distributed.Backend.register_backend("hccl", Group, devices=["npu"])
