"""Samples to a batch: one row each, padded on the right to the longest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from train.data.template import IGNORED, Sample

if TYPE_CHECKING:
    import torch


def collate(samples: Sequence[Sample], pad_token_id: int) -> dict[str, torch.Tensor]:
    """`input_ids`, `attention_mask`, `labels`: int64 [samples, longest].

    Padding is known by position, never by id: a stop token that is also the pad token stays a label.
    """
    import torch

    longest = max(len(sample.input_ids) for sample in samples)
    shape = (len(samples), longest)
    batch = {
        "input_ids": torch.full(shape, pad_token_id, dtype=torch.int64),
        "attention_mask": torch.zeros(shape, dtype=torch.int64),
        "labels": torch.full(shape, IGNORED, dtype=torch.int64),
    }
    for row, sample in enumerate(samples):
        length = len(sample.input_ids)
        batch["input_ids"][row, :length] = torch.tensor(sample.input_ids)
        batch["attention_mask"][row, :length] = 1
        batch["labels"][row, :length] = torch.tensor(sample.labels)
    return batch
