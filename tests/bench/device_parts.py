"""The parts of device_check.py: each gives its figures, or raises; `Skipped` says what is missing."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from device_steps import BATCH, TINY, VARIANTS, WHOLE, WIDE, Place, Skipped, per_call, stepper


def verify(place: Place) -> dict[str, Any]:
    """`train verify --device`, as an image for this kind of device would have it."""
    from train.checks.verify import verify as run_checks
    from train.device import PLAIN_POLICY
    from train.image import SCHEMA, VARIABLE

    build = {"version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip}
    empty: dict[str, Any] = {"packages": {}, "provided": {}, "plugin": None, "refused_packages": []}
    policy = PLAIN_POLICY[place.device]
    content = {"schema": SCHEMA, "backend": "no image", "device_type": place.device, "torch": build}
    content |= empty | {"import_at_build": True, "device_policy": policy}
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "build-info.json"
        path.write_text(json.dumps(content), encoding="utf-8")
        os.environ.setdefault(VARIABLE, str(path))
        report = run_checks({"device": True}, said).as_dict()
    if report["failed"]:
        raise RuntimeError(said.getvalue())
    if report["status"] == "skipped":
        raise Skipped(said.getvalue())
    return {"report": report}


def rotations(place: Place) -> dict[str, Any]:
    """The rotations of all blocks of a 0.5B model: seconds, how orthogonal, how near to double precision."""
    from train.adapters import cayley

    blocks, block = (64, 16) if place.is_dry else (7680, 32)
    draw = torch.Generator().manual_seed(0)
    vectors = (torch.randn(blocks, block * (block - 1) // 2, generator=draw) * 0.01).to(place.device)
    found: dict[str, Any] = {"blocks": blocks, "block_size": block}
    double = cayley.skew_matrices(vectors.double().cpu(), block)
    for name, function in (("exact", cayley.exact), ("series", lambda skew: cayley.series(skew, 5))):
        made = function(cayley.skew_matrices(vectors, block))
        found[name] = {
            "orthogonality_error": float(cayley.orthogonality_error(made)),
            "from_double": float((made.double().cpu() - function(double)).abs().max()),
            "seconds": per_call(place, lambda run=function: run(cayley.skew_matrices(vectors, block))),
        }
    if found["exact"]["orthogonality_error"] > 1e-4:
        raise RuntimeError(f"rotations are not orthogonal: {found}")
    return found


def loss(place: Place) -> dict[str, Any]:
    """isotune's loss over target tokens against cross-entropy of all logits: seconds, peak, difference."""
    from train.loop.loss import head_loss

    width, vocabulary, rows = (64, 512, 128) if place.is_dry else (896, 151_936, 4096)
    head = torch.nn.Linear(width, vocabulary, bias=False, device=place.device, dtype=place.dtype)
    head.requires_grad_(False)
    hidden = torch.randn(rows, width, device=place.device, dtype=place.dtype)
    targets = torch.randint(0, vocabulary, (rows,), device=place.device)

    def plain(leaf: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(head(leaf).float(), targets, reduction="sum")

    def ours(leaf: torch.Tensor) -> torch.Tensor:
        return head_loss(leaf, targets, head.forward, head).total

    found: dict[str, Any] = {"rows": rows, "vocabulary": vocabulary}
    gradients, values = {}, {}
    for name, function in (("plain", plain), ("isotune", ours)):
        place.begin()
        leaf = hidden.clone().requires_grad_()
        with place.autocast():
            value = function(leaf)
        value.backward()
        values[name], gradients[name] = float(value.detach()), leaf.grad
        found[name] = {"peak_memory_bytes": place.peak_bytes(), "loss": values[name] / rows}
        found[name]["seconds"] = per_call(place, lambda run=function: run(hidden.clone().requires_grad_()))
    apart = (gradients["isotune"] - gradients["plain"]).abs().max() / gradients["plain"].abs().max()
    found["gradients_apart"] = float(apart)
    if not float(apart) < 0.05 or abs(values["isotune"] / values["plain"] - 1) > 0.01:
        raise RuntimeError(f"the loss is not that of all logits: {found}")
    return found


def steps(place: Place, sizes: dict[str, int]) -> dict[str, Any]:
    """Tokens per second, seconds per step and peak memory of each variant; what fails of one is its own."""
    sizes = TINY if place.is_dry else sizes
    found: dict[str, Any] = {"sizes": sizes, "batch": BATCH, "dtype": str(place.dtype), "variants": {}}
    for name, (layers, is_packed) in VARIANTS.items():
        place.begin()
        try:
            step, tokens = stepper(place, sizes, layers, is_packed)
            seconds = per_call(place, step, place.seconds)
            found["variants"][name] = {
                "tokens_per_second": tokens / seconds,
                "seconds_per_step": seconds,
                "peak_memory_bytes": place.peak_bytes(),
            }
        except Skipped as reason:
            found["variants"][name] = {"skipped": str(reason)}
        except Exception as fault:
            found["variants"][name] = {"failed": f"{type(fault).__name__}: {str(fault)[:500]}"}
        step = None
    if failed := [name for name, one in found["variants"].items() if "failed" in one]:
        found["failed"] = failed
    return found


def launches(place: Place) -> dict[str, Any]:
    """Operators of a step, and kernels that the profiler saw being launched."""
    from launches import Counter

    sizes = TINY if place.is_dry else WHOLE
    found: dict[str, Any] = {"sizes": sizes, "variants": {}}
    for name, (layers, is_packed) in VARIANTS.items():
        place.begin()
        try:
            step, _ = stepper(place, sizes, layers, is_packed)
            step()
            place.wait()
            with Counter() as counter:
                step()
            with torch.profiler.profile() as profiler:
                step()
                place.wait()
            events = profiler.key_averages()
            seen = sum(event.count for event in events if "launchkernel" in event.key.lower())
            found["variants"][name] = {"operators": counter.launches, "kernel_launches": seen or None}
        except Skipped as reason:
            found["variants"][name] = {"skipped": str(reason)}
        step = None
    return found


PARTS: dict[str, tuple[Callable[[Place], dict[str, Any]], float]] = {
    "verify": (verify, 60),
    "rotations": (rotations, 25),
    "loss": (loss, 30),
    "steps of Qwen2.5-0.5B": (lambda place: steps(place, WHOLE), 90),
    "steps of four layers of Qwen2.5-7B": (lambda place: steps(place, WIDE), 80),
    "launches": (launches, 55),
}
"""Name -> what runs, and the most seconds that it may take with its start."""


def quiet() -> contextlib.AbstractContextManager[Any]:
    """What libraries print on stdout is no figure."""
    return contextlib.redirect_stdout(io.StringIO())
