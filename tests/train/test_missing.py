"""A driver's library that is not there: told with what brings it, also through torch's words."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.train.checks.build_infos import build_content
from train.errors import EXIT_UNAVAILABLE, UserError
from train.image import VARIABLE, read_build_info
from train.missing import absent_libraries, missing_library

DRIVER = {"name": "libisotune_driver.so.1", "given_by": "-v /driver:/driver:ro"}
TOLD = "libisotune_driver.so.1: cannot be loaded here: the host's driver: -v /driver:/driver:ro"
WORDS = "libisotune_driver.so.1: cannot open shared object file: No such file or directory"


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "build-info.json"
    libraries = [DRIVER, {"name": "libc.so.6", "given_by": "nothing"}]
    content = build_content(runtime={"libraries": libraries, "visible_devices_variable": None})
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
    assert done.stderr == (
        "error: libisotune_driver.so.1: cannot be loaded here: the host's driver: -v /driver:/driver:ro\n"
        "hint: `train doctor` shows all that this container lacks\n"
    )


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


def test_a_broken_build_info_hides_no_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/nonexistent")
    told = missing_library(OSError(WORDS))
    assert told is not None
    assert "no driver is known" in told.message


@pytest.mark.parametrize(
    "fault", [OSError(28, "No space left on device"), RuntimeError("expected scalar type")]
)
def test_another_fault_is_none_of_a_library(fault: Exception) -> None:
    assert missing_library(fault) is None


def test_only_libraries_that_do_not_load_are_absent(image: Path) -> None:
    assert absent_libraries(read_build_info()) == [TOLD]
    assert absent_libraries(None) == []


def test_an_image_without_its_device_names_the_library_that_is_not_there(image: Path, tmp_path: Path) -> None:
    """Where torch imports without the driver, as the cuda build does, the device is what is missed first."""
    from train.config import RunConfig
    from train.device import choose

    info = read_build_info()
    assert info
    object.__setattr__(info, "device_type", "npu")
    config = RunConfig(adapter="lora", model=tmp_path, data=tmp_path, output=tmp_path)
    with pytest.raises(UserError) as caught:
        choose(config, info)
    assert caught.value.exit_code == EXIT_UNAVAILABLE
    assert TOLD in caught.value.message
