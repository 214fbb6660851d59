"""`train --nproc 2` on two simulated devices, one process each: the NPU's way through torchrun and DDP."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simnpu.conftest import manifest, succeeded
from tests.train.loop.test_processes import require_same_training

Train = Callable[..., subprocess.CompletedProcess[str]]
Environment = Callable[..., dict[str, str]]

COLLECTIVES = """
import sys
import torch
from torch import distributed
rank = int(sys.argv[1])
torch.npu.set_device(rank)
distributed.init_process_group("hccl", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
def tensor(*values):
    return torch.tensor(values, dtype=torch.float16, device="npu")
summed = tensor(1 + rank, 5)
distributed.all_reduce(summed)
sent = tensor(7 + rank)
distributed.broadcast(sent, src=1)
parts = [tensor(0), tensor(0)]
distributed.all_gather(parts, tensor(rank + 1))
whole = tensor(0, 0)
distributed.all_gather_into_tensor(whole, tensor(rank + 3))
distributed.barrier()
found = [summed, sent, *parts, whole]
assert {one.device for one in found} == {torch.device("npu", rank)}
print([one.tolist() for one in found])
try:
    distributed.all_to_all_single(whole, whole.clone())
except Exception as fault:
    print(type(fault).__name__)
distributed.destroy_process_group()
"""


@pytest.mark.slow
def test_each_collective_of_the_group_gives_what_it_is_for(
    npu_environment: Environment, tmp_path: Path
) -> None:
    """On the device of each process; one that the group has not raises, and nothing is made up."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", COLLECTIVES, str(rank), str(tmp_path / "store")],
            env=npu_environment(SIMNPU_DEVICES="2"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in processes:
        out, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        # Before these, gloo may say with whom it is connected.
        assert out.splitlines()[-2:] == ["[[3.0, 10.0], [8.0], [1.0], [2.0], [3.0, 4.0]]", "RuntimeError"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lora", "oft"])
def test_two_devices_train_as_one(
    npu_train: Train, npu_arguments: Callable[..., list[str]], tmp_path: Path, kind: str
) -> None:
    """The same global batch in fp32: steps and adapter equal to 1e-6."""
    fields = {"precision": "fp32", "adam_epsilon": 1e-3, "max_steps": 4, "per_device_train_batch_size": 2}
    succeeded(npu_train("--nproc", 2, *npu_arguments(kind, **fields), SIMNPU_DEVICES="2"))
    run = manifest(tmp_path / "run")
    assert run["plan"]["num_devices"] == 2
    assert run["device"]["device"]["value"] == "npu"
    assert run["device"]["process_group"]["value"] == "hccl"
    succeeded(npu_train(*npu_arguments(kind, "one", **fields, gradient_accumulation_steps=2)))
    require_same_training(tmp_path / "run", tmp_path / "one")
