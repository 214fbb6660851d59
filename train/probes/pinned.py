"""Whether copies from pinned memory arrive: in a process of its own, which may crash or hang.

`python -m train.probes.pinned DEVICE` is that process: it loads batches as training does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from train.probes.outcome import Outcome

LIMIT_SECONDS = 120.0
"""A device's first use can take a minute; the copies themselves take less than a second."""
BATCHES, BATCH_TOKENS = 64, 4096


def probe(device: str, limit_seconds: float = LIMIT_SECONDS) -> Outcome:
    """Start the process and judge how it ended; `device` as torch writes it, such as cuda:0."""
    started = time.perf_counter()
    root = str(Path(__file__).resolve().parent.parent.parent)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    command = [sys.executable, "-m", "train.probes.pinned", device]
    try:
        done = subprocess.run(
            command,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_seconds,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )
    except subprocess.TimeoutExpired:
        fault = f"no answer within {limit_seconds:g} s"
    else:
        fault = "" if done.returncode == 0 else _ending(done.returncode, done.stderr)
    return Outcome("pinned memory", not fault, fault=fault, seconds=time.perf_counter() - started)


def _ending(code: int, errors: str) -> str:
    lines = errors.strip().splitlines()
    last = f": {lines[-1]}" if lines else ""
    if code < 0:
        return f"the process ended by {signal.Signals(-code).name}{last}"
    return f"the process ended with {code}{last}"


def copy_batches(device: str) -> None:
    """Load batches by a DataLoader with pinned memory, copy each without waiting, and compare it.

    RuntimeError where a batch is not pinned, or is another one on the device.
    """
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    rows = torch.arange(BATCHES * BATCH_TOKENS).view(BATCHES, BATCH_TOKENS)
    copies = []
    for (batch,) in DataLoader(TensorDataset(rows), batch_size=1, pin_memory=True):
        if not batch.is_pinned():
            raise RuntimeError("the loader's batches are not pinned")
        copies.append(batch.to(device, non_blocking=True))
    if not torch.equal(torch.cat(copies).cpu(), rows):
        raise RuntimeError("a batch arrived changed")


if __name__ == "__main__":
    copy_batches(sys.argv[1])
