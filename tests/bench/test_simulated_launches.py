"""What a training step launches on the simulated NPU's own dispatch key: exact, so no tolerance."""

from __future__ import annotations

from typing import Any

import pytest
import simulated_launches

from tests.simnpu import compiled


@pytest.fixture(scope="module")
def figures() -> dict[int, dict[str, dict[str, Any]]]:
    """By the number of layers."""
    try:
        compiled.build()
    except compiled.NoCompiler as fault:
        pytest.skip(str(fault))
    return simulated_launches.on_the_device([1, 2], latency=0)


def per_layer(figures: dict[int, dict[str, dict[str, Any]]], variant: str) -> int:
    return figures[2][variant]["launches"] - figures[1][variant]["launches"]


@pytest.mark.parametrize(
    ("variant", "due"),
    [("LoRA", 53), ("OFT exact", 26), ("OFT series", 26)],
)
def test_a_layer_with_an_adapter_launches_so_many_kernels_more_than_without(
    figures: dict[int, dict[str, dict[str, Any]]], variant: str, due: int
) -> None:
    assert per_layer(figures, variant) - per_layer(figures, "bare") == due


def test_the_bars_hold_for_the_depth_of_the_smallest_model(
    figures: dict[int, dict[str, dict[str, Any]]],
) -> None:
    """What a step launches once, such as the inverses by products, weighs more in one or two layers."""
    depth = 24  # Qwen2.5-0.5B
    counts = {
        variant: {"launches": found["launches"] + (depth - 1) * per_layer(figures, variant)}
        for variant, found in figures[1].items()
    }
    bars = simulated_launches.bars(counts)
    assert {name: bar["value"] for name, bar in bars.items() if not bar["ok"]} == {}
