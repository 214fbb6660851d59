"""Batches cut between their samples."""

from __future__ import annotations

import torch

from train.data.collate import pad
from train.data.template import IGNORED, Sample
from train.loop.nonfinite import rows
from train.loop.pieces import Batch, pieces, size_of


def padded(*lengths: int) -> Batch:
    samples = [Sample(list(range(1, n + 1)), [IGNORED, *range(2, n + 1)], f"d:{n}") for n in lengths]
    return pad(samples, 0)


def packed(*lengths: int) -> Batch:
    """Samples in one row with restarting positions, and a mask of who may look at whom."""
    ids = torch.cat([torch.arange(1, n + 1) for n in lengths]).unsqueeze(0)
    owner = torch.cat([torch.full((n,), index) for index, n in enumerate(lengths)])
    return {
        "input_ids": ids,
        "labels": ids.clone(),
        "position_ids": torch.cat([torch.arange(n) for n in lengths]).unsqueeze(0),
        "attention_mask": (owner[:, None] == owner).tril()[None, None],
    }


def test_padded_rows_are_cut_by_rows_and_lose_the_padding_that_only_others_needed() -> None:
    parts = pieces(padded(3, 4, 10, 2), 10)
    assert [tuple(part["input_ids"].shape) for part in parts] == [(2, 4), (1, 10), (1, 2)]
    assert [ids for part in parts for ids in rows(part)] == [list(range(1, n + 1)) for n in (3, 4, 10, 2)]
    assert parts[0]["labels"].tolist() == [[IGNORED, 2, 3, IGNORED], [IGNORED, 2, 3, 4]]
    assert parts[0]["attention_mask"].tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]


def test_packed_samples_are_cut_where_one_ends() -> None:
    batch = packed(3, 4, 10, 2)
    parts = pieces(batch, 8)
    assert [part["input_ids"].shape[1] for part in parts] == [7, 10, 2]
    assert [part["position_ids"][0, 0].item() for part in parts] == [0, 0, 0]
    assert [part["attention_mask"].shape for part in parts] == [(1, 1, n, n) for n in (7, 10, 2)]
    assert torch.equal(parts[0]["attention_mask"], batch["attention_mask"][:, :, :7, :7])
    assert [ids for part in parts for ids in rows(part)] == [list(range(1, n + 1)) for n in (3, 4, 10, 2)]


def test_pieces_count_their_own_tokens() -> None:
    batch = packed(3, 4, 10)
    batch["labels"][0, [0, 3, 7]] = IGNORED
    counted = batch | {"sample_lengths": [3, 4, 10], "num_tokens": 17, "num_target_tokens": 14}
    parts = pieces(counted, 8)
    assert [part["sample_lengths"] for part in parts] == [[3, 4], [10]]
    assert [part["num_tokens"] for part in parts] == [7, 10]
    assert [part["num_target_tokens"] for part in parts] == [5, 9]
    assert "num_tokens" not in pieces(batch, 8)[0]


def test_a_batch_that_fits_is_the_batch_itself() -> None:
    for batch in (padded(3, 4), packed(3, 4)):
        assert pieces(batch, None)[0] is batch
        assert pieces(batch, 8)[0] is batch


def test_a_tensor_that_nobody_could_cut_keeps_the_batch_whole() -> None:
    assert len(pieces(padded(3, 4), 4)) == 2
    batch = padded(3, 4) | {"offsets": torch.tensor([0, 3, 7])}
    assert pieces(batch, 4) == [batch]


def test_a_size_counts_padding_and_the_samples_of_a_packed_row() -> None:
    assert size_of(padded(3, 4)).words() == "2 samples, 8 tokens, the longest of 4"
    assert size_of(packed(3, 4, 9)).words() == "3 samples, 16 tokens, the longest of 9"
    assert size_of(packed(5)).words() == "1 sample, 5 tokens, the longest of 5"
