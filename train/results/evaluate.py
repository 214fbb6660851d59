"""How well a checkpoint predicts the answers of a file, without and with an adapter: `train eval`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from train.adapters.fingerprint import without_adapter
from train.data.collate import pad
from train.data.samples import Policies, load_samples
from train.data.template import Sample
from train.device import versions
from train.errors import EXIT_TRAINING, UserError
from train.loop.model import check_vocabulary
from train.results.opened import ModelOptions, load, open_checkpoint


@dataclass(frozen=True)
class Score:
    """Means over all target tokens, whatever the batches: loss in nats, accuracy of the likeliest token."""

    loss: float
    perplexity: float
    token_accuracy: float


def score(model: Any, samples: Sequence[Sample], pad_token_id: int, batch_size: int) -> Score:
    """Score a causal model on samples; UserError (exit 70) where the loss is not finite.

    Logits are computed only at positions that predict a target token, some at a time, as in training.
    """
    import torch

    from train.loop.loss import target_loss
    from train.loop.packed import split_batch

    device = next(model.parameters()).device
    ordered = sorted(samples, key=lambda sample: len(sample.input_ids))  # little padding
    loss, hits, count = 0.0, 0, 0
    for start in range(0, len(ordered), batch_size):
        batch = pad(ordered[start : start + batch_size], pad_token_id)
        moved = {name: value.to(device) if torch.is_tensor(value) else value for name, value in batch.items()}
        with torch.no_grad():
            found = target_loss(model, model, *split_batch(moved, "padded"), count_hits=True)
        loss += found.total.item()
        hits += int(found.hits) if found.hits is not None else 0
        count += batch["num_target_tokens"]
    if not math.isfinite(loss):
        raise UserError(f"loss is {loss}", "take precision fp32, or bf16 for fp16", EXIT_TRAINING)
    return Score(loss / count, math.exp(min(loss / count, 700)), hits / count)


def evaluate(
    options: ModelOptions, data: Path, batch_size: int, max_length: int, lines: IO[str]
) -> dict[str, Any]:
    """Score base and adapter on a file. UserError as when training: 65 data, 69 device, 78 configuration."""
    opened = open_checkpoint(options, lines)
    samples = load_samples(data, opened.template, Policies(max_length, "drop"))
    for line in samples.summary.lines() + opened.choices.lines():
        print(line, file=lines, flush=True)
    model = load(opened, lines)
    check_vocabulary([samples], opened.stop_token_ids, model.get_output_embeddings().weight.shape[0])
    rest = (samples.samples, opened.stop_token_ids[0], batch_size)
    adapted = None
    if options.adapter is None:
        base = score(model, *rest)
    else:
        adapted = score(model, *rest)
        with without_adapter(model):
            base = score(model, *rest)
    return {
        "model": str(options.model),
        "adapter": str(options.adapter) if options.adapter else None,
        "data": vars(samples.summary),
        "num_samples": len(samples.samples),
        "num_target_tokens": samples.summary.num_target_tokens,
        "base": asdict(base),
        "adapted": asdict(adapted) if adapted else None,
        "device": opened.choices.as_dict(),
        "versions": versions(),
    }


def table(report: dict[str, Any]) -> list[str]:
    """A report in lines, base and adapter side by side."""
    columns = {"base": report["base"]} | ({"adapter": report["adapted"]} if report["adapted"] else {})
    lines = [
        f"{report['num_samples']} samples, {report['num_target_tokens']} target tokens",
        f"{'':<26}" + "".join(f"{name:>12}" for name in columns),
    ]
    rows = {"loss (nats per token)": "loss", "perplexity": "perplexity", "token accuracy": "token_accuracy"}
    for title, name in rows.items():
        lines.append(f"{title:<26}" + "".join(f"{scores[name]:>12.4f}" for scores in columns.values()))
    return lines
