"""The closing table of quickstart.sh; standard library only."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

COLUMNS = ("adapter", "trainable parameters", "first loss", "last loss", "seconds", "peak memory")


def table_lines(folder: Path) -> list[str]:
    """Return the closing table: one row per finished run below a folder."""
    rows = [COLUMNS] + [
        _row(json.loads(path.read_text(encoding="utf-8"))) for path in sorted(folder.glob("*/run.json"))
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return [
        *lines,
        f"results: {folder} (adapter/, metrics.jsonl, run.json, loss.png of each run; verify.json)",
    ]


def _row(run: dict[str, Any]) -> tuple[str, ...]:
    results = run["results"]
    return (
        run["recipe"]["adapter"],
        f"{results['num_trainable_parameters']:,}",
        f"{results['first_loss']:.3f}",
        f"{results['last_loss']:.3f}",
        f"{results['seconds']:.0f}",
        f"{results['peak_memory_bytes'] / 2**20:.0f} MiB",
    )


if __name__ == "__main__":
    print("\n".join(table_lines(Path(sys.argv[1]))))
