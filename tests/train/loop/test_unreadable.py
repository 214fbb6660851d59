"""Files that the system does not let a run read: told at the start, with place, cure and the right code."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from train.config import RunConfig
from train.errors import EXIT_CONFIG, UserError
from train.loop import resume
from train.loop.model import hash_folder

UNREADABLE = "/proc/self/mem"
"""It opens for any user, and its first byte cannot be read."""


@pytest.fixture
def copy(tiny: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny, tmp_path / "model"))


def test_a_foreign_file_that_cannot_be_read_costs_no_finished_run(copy: Path) -> None:
    before = hash_folder(copy)
    (copy / "notes.log").symlink_to(UNREADABLE)
    assert hash_folder(copy) == before
    assert {"config.json", "model.safetensors"} < before.keys()


def test_files_of_the_model_that_cannot_be_read_are_all_told_at_the_start(
    copy: Path, recipe: dict[str, Any]
) -> None:
    for name in ("extra.bin", "vocab.txt"):
        (copy / name).symlink_to(UNREADABLE)
    with pytest.raises(UserError, match=r"extra.bin: cannot be read: (.|\n)*vocab.txt: cannot be") as caught:
        resume.identify(RunConfig.model_validate(recipe | {"model": copy}), [])
    assert caught.value.exit_code == EXIT_CONFIG
    assert "move it out of the folder" in caught.value.hint
    with pytest.raises(UserError, match="extra.bin: cannot be read"):
        hash_folder(copy)
