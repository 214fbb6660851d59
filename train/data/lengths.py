"""Lengths of samples in figures: quantiles, and a histogram of text."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

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
