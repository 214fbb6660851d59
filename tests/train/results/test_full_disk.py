"""Checkpoints on a disk that is full: told as such, and nothing half made stays. Needs a small real disk."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from train.checks.tiny import copy_pretrained, make_tiny
from train.errors import EXIT_CONFIG, UserError
from train.results.merge import MergeOptions, merge


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", folder]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("make", [make_tiny, copy_pretrained])
def test_a_model_that_a_full_disk_cut_leaves_nothing_in_the_way(
    make: Callable[[Path], None], small: Path
) -> None:
    (small / "there").mkdir()
    for name in ("there", "new"):
        with pytest.raises(UserError, match=f"--output .*{name}: the disk is full") as caught:
            make(small / name)
        assert (caught.value.exit_code, caught.value.hint[:9]) == (EXIT_CONFIG, "make room")
    assert [path.name for path in small.rglob("*")] == ["there"]


def test_a_merge_that_a_full_disk_cut_says_so_and_leaves_nothing(
    small: Path, tiny: Path, adapter_of: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    import sys

    with pytest.raises(UserError, match=r"--output .*merged: the disk is full") as caught:
        merge(MergeOptions(tiny, adapter_of("lora"), small / "merged"), sys.stdout)
    assert (caught.value.exit_code, caught.value.hint[:9]) == (EXIT_CONFIG, "make room")
    assert list(small.iterdir()) == []
