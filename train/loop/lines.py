"""What a run says on the terminal."""

from __future__ import annotations

from collections.abc import Iterable

from train.adapters.attach import TargetRow


def say(lines: Iterable[str]) -> None:
    """Print lines at once, so that a log shows where a run is."""
    if text := "\n".join(lines):
        print(text, flush=True)


def table_lines(table: list[TargetRow]) -> list[str]:
    """The start-up table of what is trained."""
    settings = list(table[0].settings)
    width = max(12, *(len(row.kind) + 2 for row in table))
    header = f"{'layer':<{width}}{'inputs':>8}{'outputs':>9}{'layers':>8}"
    lines = [header + "".join(f"{name:>{len(name) + 2}}" for name in settings) + f"{'trained':>12}"]
    lines += [
        f"{row.kind:<{width}}{row.in_features:>8}{row.out_features:>9}{row.num_layers:>8}"
        + "".join(f"{row.settings[name]:>{len(name) + 2}}" for name in settings)
        + f"{row.num_parameters:>12,}"
        for row in table
    ]
    blank = sum(len(name) + 2 for name in settings)
    layers, total = sum(row.num_layers for row in table), sum(row.num_parameters for row in table)
    return [*lines, f"{'in all':<{width}}{'':>8}{'':>9}{layers:>8}{'':>{blank}}{total:>12,}"]
