"""Processes that have the simulated NPU. This one never has it: a device stays known to torch for good."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.simnpu import compiled

TRAIN = "from train.cli import main; main()"


@pytest.fixture(scope="session")
def library() -> Path:
    """The compiled part; built here where it is not there yet."""
    try:
        return compiled.build()
    except compiled.NoCompiler as fault:
        pytest.skip(str(fault))


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The build-info.json of the ascend image, whose torch and plugin are those that are here."""
    import torch

    content = json.loads((ROOT / "images/rendered/ascend/build-info.json").read_text(encoding="utf-8"))
    builds = {
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
    }  # of a CUDA build in tests/version_sets.py
    content["torch"] = {"version": metadata.version("torch"), "by_architecture": {}, **builds}
    content["plugin"]["version"] = "2.10.0.post4+simulated"
    path = tmp_path_factory.mktemp("image") / "build-info.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


@pytest.fixture
def npu_environment(library: Path, image: Path, tmp_path: Path) -> Callable[..., dict[str, str]]:
    """The variables of a process in the ascend image on a simulated NPU; faults by name."""

    def made(**variables: str) -> dict[str, str]:
        kept = str(tmp_path / "cache")
        named = {"ISOTUNE_BUILD_INFO": str(image), "XDG_CACHE_HOME": kept, **variables}
        return compiled.environment(library, **named)

    return made


@pytest.fixture
def npu_train(npu_environment: Callable[..., dict[str, str]]) -> Callable[..., Any]:
    """Run `train` as its users do, on a simulated NPU; variables: its faults."""

    def run(*arguments: Any, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", TRAIN, *map(str, arguments)],
            capture_output=True,
            text=True,
            env=npu_environment(**variables),
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=600,
        )

    return run


@pytest.fixture
def npu_arguments(tiny: Path, rows_file: Path, tmp_path: Path) -> Callable[..., list[str]]:
    """Arguments of a short run into `tmp_path/name`; sets: fields of the recipe."""

    def made(kind: str, name: str = "run", **sets: Any) -> list[str]:
        fields = {
            "learning_rate": 1e-3,
            "max_steps": 6,
            "per_device_train_batch_size": 4,
            "num_generations": 0,
            **sets,
        }
        places = ["--adapter", kind, "--model", tiny, "--data", rows_file, "--output", tmp_path / name]
        return [str(one) for one in places] + [f"--set={key}={value}" for key, value in fields.items()]

    return made


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    """What a command printed; the test fails where it did not end well."""
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def manifest(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text(encoding="utf-8"))


def losses(folder: Path) -> list[float]:
    """Of all logged steps."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    return [line["loss"] for line in lines if "loss" in line]
