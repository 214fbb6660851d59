"""Samples that are longer than a model was made for are told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from train.data.lengths import beyond_positions, num_positions


def part(*lengths: int) -> Any:
    return SimpleNamespace(samples=[SimpleNamespace(input_ids=[0] * length) for length in lengths])


@pytest.mark.parametrize(
    ("content", "positions"),
    [
        ({"max_position_embeddings": 4}, 4),
        ({}, None),
        ({"max_position_embeddings": "many"}, None),
        (
            {
                "max_position_embeddings": 32768,
                "rope_scaling": {"factor": 4.0, "original_max_position_embeddings": 32768},
            },
            131072,
        ),
        (
            {"max_position_embeddings": 32768, "rope_parameters": {"rope_type": "yarn", "factor": 2.0}},
            65536,
        ),
        ({"max_position_embeddings": 4, "rope_scaling": {"mrope_section": [1, 2]}}, 4),
        ({"max_position_embeddings": 4, "rope_scaling": {"full_attention": {"factor": 3}}}, 4),
    ],
)
def test_a_model_says_how_many_positions_it_has(content: dict[str, Any], positions: int | None) -> None:
    assert num_positions(content) == positions


def test_samples_beyond_a_models_positions_are_counted() -> None:
    config = {"max_position_embeddings": 4}
    assert beyond_positions([part(3, 4), part(1)], config) == []
    assert beyond_positions([part(43)], {}) == []
    assert beyond_positions([part(3, 43), part(5)], config) == [
        "warning: 2 samples are longer than the model's 4 positions, the longest has 43 tokens: it was "
        "not made for that; --set max_length=4 leaves them out"
    ]
