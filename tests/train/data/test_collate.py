"""Batches hold every token of their samples and a label only where something predicts it."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from train.data.collate import pack, pad
from train.data.template import IGNORED, Sample

SHORT = Sample([5, 2], [5, 2], "short")
LONG = Sample([7, 8, 9], [IGNORED, 8, 9], "long")


def test_a_packed_row_has_positions_that_begin_anew_and_no_mask() -> None:
    batch = pack([SHORT, LONG], 0)
    assert batch["input_ids"].tolist() == [[5, 2, 7, 8, 9]]
    assert batch["position_ids"].tolist() == [[0, 1, 0, 1, 2]]
    assert batch["sample_lengths"] == [2, 3]
    assert "attention_mask" not in batch


def test_no_sample_predicts_the_first_token_of_the_next_one() -> None:
    batch = pack([LONG, SHORT, SHORT], 0)
    assert batch["labels"].tolist() == [[IGNORED, 8, 9, IGNORED, 2, IGNORED, 2]]
    assert (batch["num_tokens"], batch["num_target_tokens"]) == (7, 4)


def test_a_padded_batch_tells_padding_by_position_and_counts_the_same_targets() -> None:
    """The filler is a label of the short sample, too."""
    batch = pad([SHORT, LONG], 2)
    assert batch["input_ids"].tolist() == [[5, 2, 2], [7, 8, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch["labels"].tolist() == [[IGNORED, 2, IGNORED], [IGNORED, 8, 9]]
    assert (batch["num_tokens"], batch["num_target_tokens"]) == (5, 3)


@pytest.mark.parametrize("make", [pack, pad])
def test_every_field_of_tokens_has_one_length(make: Any) -> None:
    """Whatever lengths: odd ones, none divisible by 8 (LLaMA-Factory 10736)."""
    samples = [Sample([3] * length, [3] * length, "") for length in (13, 1, 7)]
    batch = make(samples, 0)
    shapes = {name: tuple(value.shape) for name, value in batch.items() if hasattr(value, "shape")}
    assert set(shapes.values()) == {(1, 21)} if make is pack else {(3, 13)}


@pytest.mark.parametrize("make", [pack, pad])
def test_arrays_of_small_integers_are_samples_too(make: Any) -> None:
    arrays = [
        Sample(numpy.array(one.input_ids, "int32"), numpy.array(one.labels, "int32"), "")  # type: ignore[arg-type]
        for one in (SHORT, LONG)
    ]
    found, wanted = make(arrays, 0), make([SHORT, LONG], 0)
    assert all(str(found[name]) == str(wanted[name]) for name in wanted)
    assert str(found["input_ids"].dtype) == "torch.int64"


@pytest.mark.parametrize("make", [pack, pad])
def test_a_batch_of_no_samples_is_one_token_without_a_target(make: Any) -> None:
    batch = make([], 7)
    assert batch["input_ids"].tolist() == [[7]]
    assert batch["labels"].tolist() == [[IGNORED]]
    assert (batch["num_tokens"], batch["num_target_tokens"]) == (0, 0)
