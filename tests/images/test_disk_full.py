"""A full disk, of the engine or of this host, is told with its cure, in the words of real ones."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from build_command import ROOT, Image

from images.engine import BuildRequest, connect
from images.errors import EXIT_UNAVAILABLE, UserError, disk_full
from images.fetch import cure
from images.progress import cure as build_cure


def test_a_full_disk_of_this_host_is_told_by_its_place() -> None:
    told = disk_full(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/wheels/a.whl"))
    assert told
    assert (told.message, told.exit_code) == ("/wheels/a.whl: No space left on device", EXIT_UNAVAILABLE)
    # Copying a folder collects its faults without their numbers.
    told = disk_full(shutil.Error([("a", "/tmp/x/a", "[Errno 28] No space left on device: '/tmp/x/a'")]))
    assert told
    assert "TMPDIR=DIR" in told.hint
    assert disk_full(OSError(errno.EACCES, "Permission denied", "a")) is None
    assert disk_full(OSError(errno.EDQUOT, "Disk quota exceeded", "a")) is not None


def test_no_traceback_where_nothing_can_be_written() -> None:
    """/dev/full is a disk that is full."""
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        done = subprocess.run(
            [sys.executable, "build.py", "list"],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == EXIT_UNAVAILABLE
    assert done.stderr.splitlines()[0] == "error: a disk of this host: No space left on device"
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_wheelhouse_on_a_full_disk_says_so() -> None:
    assert "free some space on the folder's disk" in cure(["no space left on device"])


@pytest.mark.parametrize(
    "words",
    [
        # Of a step, of the engine's own store, of its snapshots: recorded from Docker 28.5.
        "dd: error writing '/small/a': No space left on device",
        "ERROR: failed to copy: write /var/lib/docker/containerd/ingest/1/data: no space left on device",
        "OSError: [Errno 122] Disk quota exceeded",
    ],
)
def test_the_engine_s_words_for_a_full_disk_are_known(words: str) -> None:
    assert "docker builder prune frees the build cache" in build_cure(words)


@pytest.mark.engine
def test_a_step_that_fills_a_disk_is_told_with_its_cure(build_options: list[str], tmp_path: Path) -> None:
    base = next(option for option in build_options if option.startswith("--base-image=")).partition("=")[2]
    step = "RUN --mount=type=tmpfs,target=/small,size=65536 : 'fill it'; head -c 1000000 /dev/zero >/small/a"
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\n{step}\n", encoding="utf-8")
    request = BuildRequest(
        tmp_path / "Dockerfile", tmp_path, {}, tmp_path / "metadata.json", [], no_cache=True
    )
    with pytest.raises(UserError) as caught:
        connect().build(request)
    assert caught.value.message.startswith("build: step `fill it`: ")
    assert "a disk is full: of the engine" in caught.value.hint


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "none", folder], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no small disk can be made here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.engine
@pytest.mark.parametrize("name", ["layout", "image.tar"])
def test_an_output_on_a_full_disk_is_told_with_its_cure(
    cpu_image: Image, small_disk: Path, name: str
) -> None:
    options = [option for option in cpu_image.options if not option.startswith("--tag=")]
    done = cpu_image.build(*options, f"--output=oci:{small_disk / name}")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "no space left on device" in done.stderr.lower()
    assert "hint: a disk is full: " in done.stderr.splitlines()[-1]
    assert "or of this host if an --output goes there" in done.stderr
    assert "Traceback" not in done.stderr
