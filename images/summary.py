"""The closing table of quickstart.sh; standard library only."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

COLUMNS = (
    "adapter",
    "trainable parameters",
    "first loss",
    "last loss",
    "held-out loss",
    "seconds",
    "peak memory",
)


def table_lines(folder: Path) -> list[str]:
    """Return the closing table: one row per finished run below a folder, then what they answer."""
    runs = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*/run.json"))]
    rows = [COLUMNS, *map(_row, runs)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return [
        *lines,
        *_answers(runs),
        f"results: {folder} (adapter/, metrics.jsonl, run.json, loss.png of each run; verify.json)",
    ]


def _answers(runs: list[dict[str, Any]]) -> list[str]:
    """The prompts that all runs answered: before, after each of them, and as wanted."""
    lines = []
    for alike in zip(*(run["results"].get("generations", []) for run in runs), strict=False):
        first = alike[0]
        after = [(run["recipe"]["adapter"], one["after"]) for run, one in zip(runs, alike, strict=True)]
        told = [("before", first["before"]), *after, ("wanted", first["wanted"])]
        lines += [f"prompt: {first['prompt']}", *(f"{name:>8}: {text}" for name, text in told)]
    return lines


def _row(run: dict[str, Any]) -> tuple[str, ...]:
    results = run["results"]
    return (
        run["recipe"]["adapter"],
        f"{results['num_trainable_parameters']:,}",
        f"{results['first_loss']:.3f}",
        f"{results['last_loss']:.3f}",
        _change(results.get("eval_loss_before"), results.get("eval_loss_after")),
        f"{results['seconds']:.0f}",
        f"{results['peak_memory_bytes'] / 2**20:.0f} MiB",
    )


def _change(before: float | None, after: float | None) -> str:
    return "-" if before is None or after is None else f"{before:.3f} -> {after:.3f}"


if __name__ == "__main__":
    print("\n".join(table_lines(Path(sys.argv[1]))))
