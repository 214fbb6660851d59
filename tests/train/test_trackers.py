"""A tracker that happens to be installed is not used: nothing reports anywhere that was not asked for."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

NAMES = ("wandb", "mlflow", "swanlab", "tensorboardX", "trackio", "clearml", "neptune")
"""Not comet_ml: transformers imports it wherever it is installed, and only its use asks for a login."""


def test_a_run_uses_no_tracker_that_would_ask_for_a_login(
    train_command: Callable[..., subprocess.CompletedProcess[str]], recipe: dict[str, Any], tmp_path: Path
) -> None:
    """Each module would wait for a login on the standard input, which is closed."""
    site = tmp_path / "site"
    for name in NAMES:
        (site / name).mkdir(parents=True)
        used = f"open({str(tmp_path / 'used')!r}, 'a').write({name!r})\n"
        (site / name / "__init__.py").write_text(
            f"__version__ = '1.0'\n{used}input('login: ')\n", encoding="utf-8"
        )
        metadata = site / f"{name}-1.0.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    done = train_command(
        "--adapter", "lora", "--model", recipe["model"], "--data", recipe["data"],
        "--output", recipe["output"], "--set", "max_steps=1", "--set", "num_generations=0",
        PYTHONPATH=f"{site}:{ROOT}", WANDB_PROJECT="x", WANDB_MODE="online",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "used").exists(), (tmp_path / "used").read_text("utf-8")
    assert (recipe["output"] / "metrics.jsonl").read_text("utf-8").count("\n") == 1
