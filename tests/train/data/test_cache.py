"""The cache: made once per content, whole or not at all, and never the reason why a run fails."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from train.data import cache
from train.data.cache import cached, find_folder

ONE = {"a": numpy.arange(5, dtype=numpy.int32), "b": numpy.zeros(0, numpy.uint8)}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ISOTUNE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def never() -> Any:
    raise AssertionError("made again")


def equal(found: Any) -> bool:
    return found.keys() == ONE.keys() and all(numpy.array_equal(found[name], ONE[name]) for name in ONE)


def test_what_was_made_is_found_again_and_said(folder: Path) -> None:
    notes: list[str] = []
    assert equal(cached({"k": 1}, lambda: ONE, notes))
    assert notes == []
    assert equal(cached({"k": 1}, never, notes))
    (path,) = folder.iterdir()
    assert notes == [f"samples as tokenised before, from {path}"]
    assert folder.stat().st_mode & 0o077 == 0


def test_another_key_is_made_anew(folder: Path) -> None:
    cached({"k": 1}, lambda: ONE, [])
    with pytest.raises(AssertionError, match="made again"):
        cached({"k": 2}, never, [])
    assert len(list(folder.iterdir())) == 1, "what could not be made is not kept"


DAMAGES = [
    lambda data: data[: len(data) // 2],
    lambda data: b"",
    lambda data: b"x" * 99,
    lambda data: data.replace(b"\3\0\0\0", b"\7\0\0\0"),
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_set_aside_and_made_anew(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    cached({}, lambda: ONE, [])
    (path,) = folder.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    notes: list[str] = []
    assert equal(cached({}, lambda: ONE, notes))
    assert len(notes) == 1
    assert f"{path} is damaged" in notes[0]
    assert sorted(one.suffix for one in folder.iterdir()) == [".damaged", ".npz"]
    assert equal(cached({}, never, []))


def _write_often(key: dict[str, int]) -> bool:
    return all(equal(cached({**key, "n": number}, lambda: ONE, [])) for number in range(20))


def test_processes_that_write_the_same_entries_at_once_all_get_them_whole(folder: Path) -> None:
    with multiprocessing.get_context("fork").Pool(4) as pool:
        assert pool.map(_write_often, [{"k": 1}] * 4) == [True] * 4
    assert [path.suffix for path in folder.iterdir()] == [".npz"] * 20


def test_a_cache_that_was_asked_for_and_cannot_serve_is_noted_and_costs_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    monkeypatch.setenv("ISOTUNE_CACHE", str(tmp_path / "file" / "below"))
    notes: list[str] = []
    assert equal(cached({}, lambda: ONE, notes))
    assert notes == [
        f"note: $ISOTUNE_CACHE {tmp_path}/file/below cannot serve (Not a directory): samples are not kept"
    ]


@pytest.mark.parametrize("number", [28, 30, 1])
def test_a_full_or_read_only_disk_is_noted_and_leaves_nothing_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(numpy, "savez", refuse)
    notes: list[str] = []
    assert equal(cached({}, lambda: ONE, notes))
    assert notes == [f"note: samples are not kept in {folder}: {os.strerror(number)}"]
    assert list(folder.iterdir()) == []


def test_a_rename_that_fails_is_noted_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B56: mounts of object stores."""

    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "replace", refuse)
    notes: list[str] = []
    assert equal(cached({}, lambda: ONE, notes))
    assert "are not kept" in notes[0]
    assert list(folder.iterdir()) == []


def test_the_folder_is_the_first_that_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ISOTUNE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_folder([]) == tmp_path / ".cache" / "isotune"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert find_folder([]) == tmp_path / "xdg" / "isotune"
    (tmp_path / "file").write_text("x", encoding="utf-8")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setenv("HOME", str(tmp_path / "file"))
    monkeypatch.setattr(cache.tempfile, "gettempdir", lambda: str(tmp_path))
    notes: list[str] = []
    own = tmp_path / f"isotune-{os.getuid()}"
    assert find_folder(notes) == own
    assert notes == []
    own.rename(tmp_path / "elsewhere")
    own.symlink_to(tmp_path / "elsewhere")
    assert find_folder(notes) is None, "another user may have laid the link"
    assert notes == ["note: no folder for a cache can be written: samples are not kept"]


def test_only_the_entries_used_last_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "KEPT_ENTRIES", 2)
    for number in range(2):
        cached({"n": number}, lambda: ONE, [])
    for number, path in enumerate(sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)):
        os.utime(path, (number, number))
    for name, age in ((f"{'a' * 64}-half.tmp", 90_000), (f"{'a' * 64}-other.tmp", 60)):
        (folder / name).write_bytes(b"")
        os.utime(folder / name, (time.time() - age,) * 2)
    cached({"n": 0}, never, [])
    cached({"n": 2}, lambda: ONE, [])
    assert equal(cached({"n": 0}, never, []))
    assert sorted(path.suffix for path in folder.iterdir()) == [".npz", ".npz", ".tmp"]
    assert (folder / f"{'a' * 64}-other.tmp").exists(), "another process may be writing it"


def test_files_of_others_in_the_same_folder_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "KEPT_ENTRIES", 1)
    folder.mkdir(parents=True, exist_ok=True)
    others = [folder / name for name in ("theirs.npz", "mine.npz", "download.tmp")]
    for other in others:
        other.touch()
        os.utime(other, (0, 0))
    half = folder / f"{'a' * 64}-x_1.tmp"
    half.touch()
    os.utime(half, (0, 0))
    for number in range(2):
        cache.cached({"number": number}, lambda: {"x": numpy.arange(3)}, [])
    assert all(other.exists() for other in others)
    assert not half.exists()
    assert len([path for path in folder.glob("*.npz") if len(path.stem) == 64]) == 1
