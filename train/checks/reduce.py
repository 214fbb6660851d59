"""An all-reduce over several processes, one for each device, as training sums over them.

`python -m train.checks.reduce DEVICE_TYPE GROUP RANK COUNT STORE` is one of the processes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

from train.checks.report import CheckFailed

LIMIT_SECONDS = 180.0
"""For all processes together: a group that cannot be formed waits, it does not fail."""
NUM_ELEMENTS = 1 << 20


def reduce_everywhere(device_type: str, group: str, count: int, limit_seconds: float = LIMIT_SECONDS) -> str:
    """Let `count` processes sum a tensor; CheckFailed with the words of each that does not get the sum."""
    started = time.perf_counter()
    root = str(Path(__file__).resolve().parent.parent.parent)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    with tempfile.TemporaryDirectory(prefix="isotune-reduce-") as folder:
        logs = [Path(folder) / f"{rank}.log" for rank in range(count)]
        processes = []
        for rank, log in enumerate(logs):
            arguments = [device_type, group, str(rank), str(count), str(Path(folder) / "store")]
            with log.open("w", encoding="utf-8") as file:
                processes.append(
                    subprocess.Popen(
                        [sys.executable, "-m", "train.checks.reduce", *arguments],
                        stdin=subprocess.DEVNULL,
                        stdout=file,
                        stderr=subprocess.STDOUT,
                        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "LOCAL_RANK": str(rank)},
                    )
                )
        faults = _wait(processes, logs, started + limit_seconds)
    if faults:
        raise CheckFailed("; ".join(faults))
    return f"{count} processes of {group} sum {NUM_ELEMENTS} numbers right"


def _wait(processes: list[subprocess.Popen[bytes]], logs: list[Path], deadline: float) -> list[str]:
    """The words on each process that failed, or was not done in time; none is left behind."""
    faults = []
    try:
        for rank, (process, log) in enumerate(zip(processes, logs, strict=True)):
            try:
                code = process.wait(timeout=max(0.1, deadline - time.perf_counter()))
            except subprocess.TimeoutExpired:
                faults.append(f"process {rank}: not done in time")
                continue
            if code != 0:
                lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
                faults.append(f"process {rank}: ended with {code}{': ' + lines[-1] if lines else ''}")
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return faults


def take_part(device_type: str, group: str, rank: int, count: int, store: str) -> None:
    """One process: join the group by a file, sum, compare. RuntimeError where the sum is another."""
    import torch
    from torch import distributed

    device = torch.device(device_type) if device_type == "cpu" else torch.device(device_type, rank)
    if device.type != "cpu":
        getattr(torch, device.type).set_device(device)
    distributed.init_process_group(
        group,
        init_method=f"file://{store}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=LIMIT_SECONDS),
    )
    try:
        mine = torch.arange(NUM_ELEMENTS, device=device, dtype=torch.float32) % 1000 + rank
        distributed.all_reduce(mine)
        due = (torch.arange(NUM_ELEMENTS, dtype=torch.float32) % 1000) * count + sum(range(count))
        if not torch.equal(mine.cpu(), due):
            wrong = int((mine.cpu() != due).sum())
            raise RuntimeError(f"{wrong} of {NUM_ELEMENTS} sums are wrong")
    finally:
        distributed.destroy_process_group()


if __name__ == "__main__":
    take_part(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
