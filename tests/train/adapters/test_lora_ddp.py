"""Two processes with half a batch each give LoRA the gradients of one process with the whole batch."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from lora_twins import checkpointed, twins
from oft_twins import IDS, gap, gradients, loss_of, trained
from torch.nn.parallel import DistributedDataParallel


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]


def run_steps(model: Any, inner: Any, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Two steps by a fused optimizer, each of two micro-batches, and the gradients of the third."""
    optimizer = torch.optim.AdamW(trained(inner).values(), lr=1e-2, eps=1e-3, fused=True)
    for number in range(3):
        optimizer.zero_grad()
        loss_of(model, ids).backward()
        loss_of(model, ids.flip(1)).backward()
        if number < 2:
            optimizer.step()
    return gradients(inner)


def half(rank: int, port: int, folder: str, checkpoints: bool) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    _, ours = twins(num_layers=1)
    if checkpoints:
        checkpointed(ours)
    found = run_steps(DistributedDataParallel(ours), ours, IDS[rank : rank + 1])
    torch.save(found, f"{folder}/{rank}")
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("checkpoints", [False, True])
def test_gradients_of_two_processes_are_those_of_one(tmp_path: Path, checkpoints: bool) -> None:
    plain, ours = twins(num_layers=1)

    mp.spawn(half, args=(free_port(), str(tmp_path), checkpoints), nprocs=2)

    parts = [torch.load(tmp_path / str(rank)) for rank in range(2)]
    assert gap(parts[0], parts[1]) == 0
    assert gap(run_steps(ours, ours, IDS), parts[0]) < 1e-6
    assert gap(run_steps(plain, plain, IDS), parts[0]) < 1e-6
