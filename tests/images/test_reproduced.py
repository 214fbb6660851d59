"""A record says which digest came out twice and where; the matrix claims it of today's lock alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from build_command import BuildCommand

from images import matrix
from images.errors import UserError
from images.lockfile import Lock, read_lock
from images.reproduced import Reproduced, is_reproduced, outcome, record
from images.specfile import load_specs

DIGEST = "sha256:" + "5" * 64
INFO = {"ServerVersion": "28.5.2", "OperatingSystem": "Debian", "ID": "an-engine", "DockerRootDir": "/own"}


@pytest.fixture
def lock() -> Lock:
    found = read_lock("cpu")
    assert found
    return found


def found(is_given: bool, base_image: str | None = None) -> Reproduced:
    engine = cast(Any, SimpleNamespace(architecture="x86_64", info=INFO))
    return outcome(load_specs()["cpu"], engine, DIGEST, is_given, base_image)


def test_an_outcome_names_engine_base_and_how_and_no_folder_of_the_host(lock: Lock) -> None:
    item = found(False, "isotune-base:cpu")
    assert (item.how, item.base, item.digest, item.lock_id) == (
        "two cold builds",
        "stand-in",
        DIGEST,
        lock.lock_id,
    )
    assert item.engine == "Docker Engine 28.5.2 on Debian, id an-engine"
    given = found(True)
    assert (given.how, given.base) == ("a cold build against a given image", "named")
    assert "/own" not in item.model_dump_json()


def test_both_kinds_are_kept_and_count_for_their_image_and_lock(tmp_path: Path, lock: Lock) -> None:
    assert not is_reproduced("cpu", lock, tmp_path)
    paths = {record(found(is_given), tmp_path).name for is_given in (False, True)}
    assert paths == {"cpu-x86_64-two.json", "cpu-x86_64-given.json"}
    assert is_reproduced("cpu", lock, tmp_path)
    assert not is_reproduced("cuda", lock, tmp_path)
    assert not is_reproduced("cpu", None, tmp_path)
    assert not is_reproduced("cpu", dataclasses.replace(lock, lock_id="0" * 12), tmp_path)


def test_a_broken_record_is_named(tmp_path: Path, lock: Lock) -> None:
    (tmp_path / "cpu-x86_64-two.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match=r"cpu-x86_64-two.json: not a record of `reproduce`"):
        is_reproduced("cpu", lock, tmp_path)


def test_the_matrix_says_reproduced_where_a_record_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = [load_specs()["cpu"]]
    for shown in (True, False):
        monkeypatch.setattr(matrix, "is_reproduced", lambda image, lock, shown=shown: shown)
        assert ("; reproduced" in matrix.table(matrix.rows(spec))) is shown


def test_a_reproduction_that_did_not_come_about_leaves_no_record(
    build_py: BuildCommand, tree_build_py: BuildCommand
) -> None:
    done = tree_build_py("reproduce", "--backend=cpu", "--record", DOCKER_HOST="unix:///nowhere/docker.sock")
    assert done.returncode == 69
    assert not (tree_build_py.tree / "images/evidence/reproduced/cpu-x86_64-two.json").exists()
