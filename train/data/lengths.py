"""Lengths of samples in figures: quantiles, and a histogram of text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

BAR_WIDTH = 40


def quantiles(lengths: Sequence[int]) -> dict[str, int]:
    """Shortest, median, 95th and 99th of a hundred, longest, in tokens; empty of nothing."""
    ordered = sorted(lengths)
    shares = {"shortest": 0.0, "median": 0.5, "p95": 0.95, "p99": 0.99, "longest": 1.0}
    return {name: ordered[round(share * (len(ordered) - 1))] for name, share in shares.items() if ordered}


def histogram(lengths: Sequence[int], max_length: int) -> list[tuple[int, int, int]]:
    """(from, to, count) of bins that double in width; `max_length` ends one of them."""
    ordered = sorted(lengths)
    if not ordered:
        return []
    longest = ordered[-1]
    edges = {1 << power for power in range(3, longest.bit_length())} | {max_length}
    bins, low, done = [], 1, 0
    for edge in [*sorted(edge for edge in edges if edge < longest), longest]:
        upto = bisect_right(ordered, edge)
        if upto:  # no empty bins before the first sample
            bins.append((low, edge, upto - done))
        low, done = edge + 1, upto
    return bins


def histogram_lines(lengths: Sequence[int], max_length: int) -> list[str]:
    """The histogram as bars; bins of samples longer than `max_length` say so."""
    bins = histogram(lengths, max_length)
    most = max(count for _, _, count in bins)
    lines = [f"{'tokens':>15} {'samples':>9}"]
    for low, high, count in bins:
        bar = "#" * -(-count * BAR_WIDTH // most)
        beyond = "  longer than max_length" if low > max_length else ""
        lines.append(f"{f'{low}-{high}':>15} {count:>9} {bar}{beyond}".rstrip())
    return lines


def num_positions(content: Mapping[str, Any]) -> int | None:
    """The tokens of a sequence that a model was made for; None where its config.json does not say.

    `content`: of its text part. A scaling of rotary positions (YaRN) multiplies them, and Qwen's files
    leave `max_position_embeddings` as it was.
    """
    made_for = content.get("max_position_embeddings")
    if not isinstance(made_for, int):
        return None
    scaling = content.get("rope_scaling") or content.get("rope_parameters") or {}
    factor = scaling.get("factor") if isinstance(scaling, dict) else None
    if not isinstance(factor, int | float):
        return made_for
    original = scaling.get("original_max_position_embeddings") or made_for
    return max(made_for, round(original * factor))


def beyond_positions(parts: Sequence[Any], content: Mapping[str, Any]) -> list[str]:
    """What to say where these `Samples` hold some that are longer than the model's positions."""
    positions = num_positions(content)
    lengths = [len(sample.input_ids) for part in parts for sample in part.samples]
    beyond = [length for length in lengths if positions and length > positions]
    if not beyond:
        return []
    which = f"{len(beyond)} samples are" if len(beyond) > 1 else "one sample is"
    what = f"{which} longer than the model's {positions} positions, the longest has {max(beyond)} tokens"
    cure = f"--set max_length={positions} leaves {'them' if len(beyond) > 1 else 'it'} out"
    return [f"warning: {what}: it was not made for that; {cure}"]
