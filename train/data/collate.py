"""Samples to a batch: packed into one row without padding, or one row each, padded to the longest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from train.data.template import IGNORED, Sample

if TYPE_CHECKING:
    import torch


def pack(samples: Sequence[Sample], filler_id: int) -> dict[str, Any]:
    """One row of all samples, one after another: `input_ids`, `labels`, `position_ids`, int64 [1, tokens].

    Positions begin at 0 in each sample; there is no mask: libraries tell samples apart by positions only
    without one (facts on packing: transformers pull request 46634). The first token of a sample is never a
    target, or the sample before would predict it. `sample_lengths`: tokens of each. Of no samples: one token
    without a target, for a device that has nothing to do.
    """
    import torch

    if not samples:
        one = torch.full((1, 1), filler_id)
        return {
            "input_ids": one,
            "position_ids": torch.zeros_like(one),
            "labels": torch.full_like(one, IGNORED),
            "sample_lengths": [1],
            "num_tokens": 0,
            "num_target_tokens": 0,
        }
    lengths = [len(sample.input_ids) for sample in samples]
    labels = torch.cat([_row(sample.labels) for sample in samples])
    labels[torch.tensor([0, *lengths[:-1]]).cumsum(0)] = IGNORED
    return {
        "input_ids": torch.cat([_row(sample.input_ids) for sample in samples])[None],
        "position_ids": torch.cat([torch.arange(length) for length in lengths])[None],
        "labels": labels[None],
        "sample_lengths": lengths,
        "num_tokens": sum(lengths),
        "num_target_tokens": int((labels != IGNORED).sum()),
    }


def pad(samples: Sequence[Sample], filler_id: int) -> dict[str, Any]:
    """`input_ids`, `attention_mask`, `labels`: int64 [samples, longest].

    Padding is known by position, never by id: a stop token that is also the filler stays a label. Of no
    samples: as `pack`.
    """
    import torch

    longest = max((len(sample.input_ids) for sample in samples), default=1)
    shape = (max(1, len(samples)), longest)
    batch = {
        "input_ids": torch.full(shape, filler_id, dtype=torch.int64),
        "attention_mask": torch.zeros(shape, dtype=torch.int64),
        "labels": torch.full(shape, IGNORED, dtype=torch.int64),
    }
    for row, sample in enumerate(samples):
        length = len(sample.input_ids)
        batch["input_ids"][row, :length] = _row(sample.input_ids)
        batch["attention_mask"][row, :length] = 1
        batch["labels"][row, 1:length] = _row(sample.labels)[1:]
    if not samples:
        batch["attention_mask"][:] = 1
    return {
        **batch,
        "num_tokens": sum(len(sample.input_ids) for sample in samples),
        "num_target_tokens": int((batch["labels"] != IGNORED).sum()),
    }


def _row(numbers: Any) -> torch.Tensor:
    import torch

    return torch.as_tensor(numbers).to(torch.int64)
