"""What many tests share: one tiny checkpoint, a few rows, and the train command in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Tiny models gain nothing from threads, and two OpenMP teams on one core wait for each other. Set before
# torch loads.
os.environ["OMP_NUM_THREADS"] = "1"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint made by `make-tiny`; tests must not write into it."""
    from train.checks.tiny import make_tiny

    folder = tmp_path_factory.mktemp("tiny") / "model"
    make_tiny(folder)
    return folder


@pytest.fixture
def rows_file(tmp_path: Path) -> Path:
    """Sixteen alpaca rows from the shipped samples."""
    from train.checks.tiny import samples_file

    lines = samples_file().read_text(encoding="utf-8").split("\n")[:16]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def recipe(tiny: Path, rows_file: Path, tmp_path: Path) -> dict[str, Any]:
    """Fields of a run of a few steps, for RunConfig."""
    return {
        "adapter": "lora",
        "model": tiny,
        "data": rows_file,
        "output": tmp_path / "out",
        "device": "cpu",
        "learning_rate": 1e-2,
        "max_steps": 4,
        "per_device_train_batch_size": 4,
        "num_generations": 0,
    }


@pytest.fixture
def write_rows(tmp_path: Path) -> Callable[..., Path]:
    """Write rows (objects, or ready lines of text) as JSONL and return the path."""

    def write(*rows: Any, name: str = "data.jsonl") -> Path:
        path = tmp_path / name
        lines = [row if isinstance(row, str) else json.dumps(row, ensure_ascii=False) for row in rows]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return write


@pytest.fixture
def train_command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `train` as its users do: in a new process, from another folder."""

    def run(*arguments: Any, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", "from train.cli import main; main()", *map(str, arguments)],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=300,
        )

    return run
