"""A run whose own files fill the disk: told with file and cure, and no half file stays."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from train.config import RunConfig
from train.errors import EXIT_CONFIG, EXIT_TRAINING, UserError
from train.loop.manifest import Manifest
from train.loop.metrics import EvaluationMetrics, MetricsFile


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 12 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=12k", "none", folder]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_manifest_that_fills_the_disk_is_told_and_stays_as_it_was(
    small: Path, recipe: dict[str, Any]
) -> None:
    config = RunConfig.model_validate(recipe | {"output": small})
    manifest = Manifest.create(config)
    before = (small / "run.json").read_text(encoding="utf-8")
    with pytest.raises(UserError, match=r"run.json: cannot be written: No space left") as caught:
        manifest.update(data="x" * 20_000)
    assert (caught.value.exit_code, caught.value.hint[:9]) == (EXIT_TRAINING, "make room")
    manifest.close()
    assert (small / "run.json").read_text(encoding="utf-8") == before
    assert [path.name for path in small.iterdir()] == ["run.json"]


def test_a_disk_that_is_full_before_the_run_is_a_fault_of_the_output(
    small: Path, recipe: dict[str, Any]
) -> None:
    (small / "else").write_bytes(b"x" * 12_288)
    with pytest.raises(UserError, match=r"--output .*: cannot be written: No space left") as caught:
        Manifest.create(RunConfig.model_validate(recipe | {"output": small}))
    assert (caught.value.exit_code, caught.value.hint[:9]) == (EXIT_CONFIG, "make room")


def test_metrics_that_fill_the_disk_are_told_and_whole_lines_stay(small: Path) -> None:
    metrics = MetricsFile(small / "metrics.jsonl")
    with pytest.raises(UserError, match=r"metrics.jsonl: cannot be written: No space left") as caught:
        for step in range(1, 1000):
            metrics.write(EvaluationMetrics(step, 0.0, {"data": 1.0}, 0.0))
    assert (caught.value.exit_code, caught.value.hint[:9]) == (EXIT_TRAINING, "make room")
    metrics.close()
    lines = (small / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(lines[-2])["step"] == len(lines) - 1
