"""Checks that train: 20 steps of a tiny Qwen with each adapter, its life from saving to merging, and
packing.
"""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, PreTrainedModel

from train.adapters import oft
from train.checks.report import CheckFailed
from train.checks.tiny import make_tiny, samples_file
from train.config import RunConfig
from train.loop.run import Outcome, run
from train.stop import Stopped

NUM_STEPS = 20
LOGIT_TOLERANCE = 1e-4
"""fp32 logits of this size agree to about 1e-6; a wrong adapter differs by more than 0.1."""
SMALLEST_FALL = 0.99
ORTHOGONAL_TOLERANCE = 1e-5
LOSS_TOLERANCE = 1e-5


@dataclass
class Bench:
    """The folder of the checks, with one tiny model that all of them share."""

    folder: Path

    def __post_init__(self) -> None:
        # Tiny models gain nothing from threads, and on a busy host OpenMP's threads wait for each other.
        torch.set_num_threads(1)

    @property
    def model(self) -> Path:
        path = self.folder / "model"
        if not path.exists():
            make_tiny(path)
        return path

    def adapter(self, name: str) -> Path:
        return self.folder / f"run-{name}" / "adapter"

    def base(self) -> PreTrainedModel:
        return AutoModelForCausalLM.from_pretrained(
            self.model, dtype=torch.float32, local_files_only=True
        ).eval()

    def ids(self) -> torch.Tensor:
        """int64 [2, 24]: two rows of ordinary tokens, the same every time."""
        return torch.randint(7, 280, (2, 24), generator=torch.Generator().manual_seed(1))


def trains(bench: Bench, adapter: str) -> str:
    """20 steps by the real path: the loss falls, each adapter tensor gets a gradient, what was trained
    is saved.
    """
    outcome = _run(bench, adapter)
    results = outcome.results
    first, last = results["first_loss"], results["mean_last_loss"]
    if not 0 < last < SMALLEST_FALL * first:
        raise CheckFailed(f"{NUM_STEPS} steps: the loss did not fall, {first:.4f} -> {last:.4f}")
    detail = f"{NUM_STEPS} steps: loss {first:.3f} -> {last:.3f}; {results['gradients']}"
    with torch.no_grad():
        loaded = (
            PeftModel.from_pretrained(bench.base(), str(bench.adapter(adapter))).eval()(bench.ids()).logits
        )
        _equal("trained and saved", outcome.model.eval()(bench.ids()).logits, loaded)
    return detail


@dataclass(frozen=True)
class Curve:
    """The loss of each step (nats), and the precision in which the run was computed."""

    losses: list[float]
    precision: str


def curve(bench: Bench, adapter: str, device: str, precision: str) -> Curve:
    """20 steps by the real path on a device; run again only where this bench has not run them yet."""
    output = bench.folder / f"curve-{adapter}-{device}-{precision}"
    if not output.exists():
        _run(bench, adapter, output=output, device=device, precision=precision)
    lines = map(json.loads, (output / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    losses = [line["loss"] for line in lines if "loss" in line]
    told = json.loads((output / "run.json").read_text(encoding="utf-8"))
    return Curve(losses, told["device"]["precision"]["value"])


def _run(bench: Bench, adapter: str, **fields: Any) -> Outcome:
    config = RunConfig.model_validate(
        {
            "adapter": adapter,
            "model": bench.model,
            "data": samples_file(),
            "output": bench.folder / f"run-{adapter}",
            "device": "cpu",
            "learning_rate": 1e-2,
            "max_steps": NUM_STEPS,
            "per_device_train_batch_size": 4,
            "num_generations": 0,
            **fields,
        }
    )
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            return run(config)
        except Stopped as stop:  # its checkpoint goes with the bench: no command goes on from there
            raise Stopped(stop.number) from None


def reloads_and_merges(bench: Bench, adapter: str) -> str:
    """The saved adapter loads with plain PEFT, changes the model, and merges: same logits each time."""
    folder = bench.adapter(adapter)
    if not folder.exists():
        raise CheckFailed("there is no adapter: the training check did not come so far")
    ids = bench.ids()
    with torch.no_grad():
        plain = bench.base()(ids).logits
        loaded = PeftModel.from_pretrained(bench.base(), str(folder)).eval()
        adapted = loaded(ids).logits
        again = PeftModel.from_pretrained(bench.base(), str(folder)).eval()(ids).logits
        merged_model = loaded.merge_and_unload()
        merged_folder = bench.folder / f"merged-{adapter}"
        merged_model.save_pretrained(merged_folder)
        merged = (
            AutoModelForCausalLM.from_pretrained(merged_folder, dtype=torch.float32, local_files_only=True)
            .eval()(ids)
            .logits
        )
    effect = _difference(adapted, plain)
    if not effect > 10 * LOGIT_TOLERANCE:
        raise CheckFailed(f"the loaded adapter does nothing: logits differ from the base's by {effect:.1e}")
    _equal("loaded twice", adapted, again)
    _equal("merged, saved and loaded", adapted, merged)
    error = _difference(adapted, merged)
    return f"changes logits by {effect:.2f}; merged and reloaded they differ by {error:.1e}"


def _difference(left: torch.Tensor, right: torch.Tensor) -> float:
    return (left - right).abs().max().item()


def _equal(what: str, left: torch.Tensor, right: torch.Tensor) -> None:
    difference = _difference(left, right)
    if not difference <= LOGIT_TOLERANCE:
        raise CheckFailed(f"{what}: logits differ by {difference:.1e}, {LOGIT_TOLERANCE:.0e} is allowed")


def packing_keeps_samples_apart(bench: Bench) -> str:
    """Two samples in one row, told apart by restarting position_ids alone, have the losses that they
    have alone.
    """
    model = bench.base()
    model.config.use_cache = False
    rows = bench.ids()
    lengths = (24, 17)
    parts = [row[:length] for row, length in zip(rows, lengths, strict=True)]
    packed = torch.cat(parts).unsqueeze(0)
    positions = torch.cat([torch.arange(length) for length in lengths]).unsqueeze(0)
    with torch.no_grad():
        together = model(input_ids=packed, position_ids=positions, use_cache=False).logits[0].split(lengths)
        for index, (part, logits) in enumerate(zip(parts, together, strict=True)):
            alone = model(input_ids=part.unsqueeze(0), use_cache=False).logits[0]
            losses = [
                torch.nn.functional.cross_entropy(scores[:-1], part[1:]).item() for scores in (logits, alone)
            ]
            if not abs(losses[0] - losses[1]) <= LOSS_TOLERANCE:
                raise CheckFailed(
                    f"sample {index}: loss {losses[0]:.6f} packed, {losses[1]:.6f} alone: attention leaks"
                )
    return f"losses of {len(parts)} packed samples equal their own within {LOSS_TOLERANCE:.0e}"


def rotations_are_orthogonal(bench: Bench) -> str:
    """The saved OFT adapter's rotations, computed anew from its file."""
    error = oft.orthogonality_error(PeftModel.from_pretrained(bench.base(), str(bench.adapter("oft"))))
    if not error <= ORTHOGONAL_TOLERANCE:
        raise CheckFailed(f"largest |R R^T - I| is {error:.1e}, {ORTHOGONAL_TOLERANCE:.0e} is allowed")
    return f"largest |R R^T - I| is {error:.1e}"
