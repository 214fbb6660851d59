"""A batch cut into smaller ones between its samples, whether these are padded rows or packed into one row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from train.data.template import IGNORED

Batch = dict[str, Any]
COUNTED = ("sample_lengths", "num_tokens", "num_target_tokens")
"""What a batch may say of its samples; a piece says it of its own."""


@dataclass(frozen=True)
class Size:
    """What one forward holds. num_tokens: with padding, as memory counts them."""

    num_samples: int
    num_tokens: int
    longest: int

    def words(self) -> str:
        samples = "1 sample" if self.num_samples == 1 else f"{self.num_samples} samples"
        return f"{samples}, {self.num_tokens} tokens, the longest of {self.longest}"


def size_of(batch: Batch) -> Size:
    """The size of a batch; reads lengths from the device."""
    lengths = _lengths(batch)
    return Size(len(lengths), batch["input_ids"].numel(), max(lengths))


def pieces(batch: Batch, budget: int | None) -> list[Batch]:
    """The batch as batches of at most `budget` tokens, padding counted; a longer sample is alone in its own.

    Samples keep their order. The batch itself where it fits, or holds tensors of another shape than
    [rows, tokens] and [rows, heads, tokens, tokens], which nobody could cut.
    """
    ids = batch["input_ids"]
    if (
        budget is None
        or ids.numel() <= budget
        or not all(_can_cut(name, one, ids) for name, one in batch.items())
    ):
        return [batch]
    lengths = _lengths(batch)
    if _is_packed(batch):
        ends = [sum(lengths[: index + 1]) for index in range(len(lengths))]
        return [
            _cut(
                batch, slice(None), slice(ends[first] - lengths[first], ends[last]), lengths[first : last + 1]
            )
            for first, last in _groups(lengths, budget, is_padded=False)
        ]
    return [
        _cut(
            batch, slice(first, last + 1), slice(0, max(lengths[first : last + 1])), lengths[first : last + 1]
        )
        for first, last in _groups(lengths, budget, is_padded=True)
    ]


def _groups(lengths: list[int], budget: int, is_padded: bool) -> list[tuple[int, int]]:
    """First and last index of runs of samples that fit together."""
    groups: list[tuple[int, int]] = []
    for index in range(len(lengths)):
        if groups:
            first = groups[-1][0]
            run = lengths[first : index + 1]
            if (len(run) * max(run) if is_padded else sum(run)) <= budget:
                groups[-1] = first, index
                continue
        groups.append((index, index))
    return groups


def _is_packed(batch: Batch) -> bool:
    positions = batch.get("position_ids")
    return positions is not None and positions.shape == batch["input_ids"].shape and len(positions) == 1


def _lengths(batch: Batch) -> list[int]:
    """Tokens of each sample, in order."""
    ids, mask = batch["input_ids"], batch.get("attention_mask")
    if _is_packed(batch):
        starts = (batch["position_ids"][0] == 0).nonzero().flatten().tolist()
        return [end - start for start, end in zip(starts, [*starts[1:], ids.shape[1]], strict=True)]
    if mask is None or mask.shape != ids.shape:
        return [ids.shape[1]] * len(ids)
    place = torch.arange(1, ids.shape[1] + 1, device=ids.device)
    return (mask * place).amax(1).tolist()


def _can_cut(name: str, value: Any, ids: torch.Tensor) -> bool:
    if not isinstance(value, torch.Tensor):
        return name in COUNTED or not isinstance(value, (list, tuple, dict))
    rows, tokens = ids.shape
    is_square = value.dim() == 4 and value.shape[0] == rows and value.shape[2:] == (tokens, tokens)
    return is_square or value.shape == ids.shape


def _cut(batch: Batch, rows: slice, tokens: slice, lengths: list[int]) -> Batch:
    def part(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value[rows, tokens] if value.dim() == 2 else value[rows, :, tokens, tokens]

    piece = {name: part(value) for name, value in batch.items()}
    # A batch that counts its targets has none on the first token of a sample (train/data/collate.py).
    counts = (lengths, sum(lengths), lambda: int((piece["labels"] != IGNORED).sum()))
    for name, count in zip(COUNTED, counts, strict=True):
        if name in batch:
            piece[name] = count() if callable(count) else count
    return piece
