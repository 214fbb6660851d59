"""A driver's library that is not there: told with what brings it, also through torch's words."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.train.checks.build_infos import build_content
from train.errors import EXIT_UNAVAILABLE
from train.image import VARIABLE
from train.missing import missing_library

DRIVER = {"name": "libisotune_driver.so.1", "folders": ["/driver"], "given_by": "-v /driver:/driver:ro"}
TOLD = (
    "libisotune_driver.so.1: cannot be loaded here: it belongs to the host's driver: "
    "-v /driver:/driver:ro brings it"
)
WORDS = "libisotune_driver.so.1: cannot open shared object file: No such file or directory"


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "build-info.json"
    content = build_content(runtime={"libraries": [DRIVER]})
    path.write_text(json.dumps(content), encoding="utf-8")
    monkeypatch.setenv(VARIABLE, str(path))
    return path


@pytest.fixture
def plugin(tmp_path: Path) -> Path:
    """A plugin of torch, found and imported by torch itself, that loads a library of its driver."""
    folder = tmp_path / "plugin"
    (folder / "its_plugin-1.dist-info").mkdir(parents=True)
    (folder / "its_plugin-1.dist-info/METADATA").write_text(
        "Name: its-plugin\nVersion: 1\n", encoding="utf-8"
    )
    entry_points = "[torch.backends]\nits_plugin = its_plugin:start\n"
    (folder / "its_plugin-1.dist-info/entry_points.txt").write_text(entry_points, encoding="utf-8")
    code = "import ctypes\nctypes.CDLL('libisotune_driver.so.1')\ndef start(): pass\n"
    (folder / "its_plugin.py").write_text(code, encoding="utf-8")
    return folder


def test_a_plugin_without_its_driver_ends_in_two_lines_with_the_mount(
    train_command: Callable[..., subprocess.CompletedProcess[str]], plugin: Path, image: Path, tmp_path: Path
) -> None:
    path = f"{plugin}:{Path(__file__).parents[2]}"
    done = train_command("make-tiny", "--kind", "text", "--output", tmp_path / "model", PYTHONPATH=path)
    assert done.returncode == EXIT_UNAVAILABLE
    assert done.stderr == f"error: {TOLD}\nhint: `train doctor` shows all that this container lacks\n"


def test_a_library_that_led_to_the_fault_is_found_behind_it(image: Path) -> None:
    try:
        try:
            raise ImportError(WORDS)
        except ImportError as cause:
            raise RuntimeError("Failed to load the backend extension") from cause
    except RuntimeError as fault:
        told = missing_library(fault)
    assert told is not None
    assert told.message == TOLD


def test_every_library_is_told_once_and_an_unknown_one_as_unknown(image: Path) -> None:
    told = missing_library(OSError(f"{WORDS}; {WORDS}; libother.so: cannot open shared object file"))
    assert told is not None
    first, second = told.message.splitlines()
    assert first == TOLD
    assert second == "libother.so: cannot be loaded here: no driver is known to bring it"


@pytest.mark.parametrize(
    "fault", [OSError(28, "No space left on device"), RuntimeError("expected scalar type")]
)
def test_another_fault_is_none_of_a_library(fault: Exception) -> None:
    assert missing_library(fault) is None
