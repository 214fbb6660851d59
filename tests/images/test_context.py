"""The build context: only what the image is made of, the same on every host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

FOLLOW = "import json, sys; from images.context import revision; print(json.dumps(revision().__dict__))"


def revision(tree: Path, **environment: str) -> dict[str, object]:
    variables = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    done = subprocess.run(
        [sys.executable, "-c", FOLLOW],
        cwd=tree,
        capture_output=True,
        text=True,
        check=True,
        env=variables | environment,
    )
    return json.loads(done.stdout)


def git(tree: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    environment = {
        **os.environ,
        "GIT_AUTHOR_DATE": "1700000000 +0000",
        "GIT_COMMITTER_DATE": "1700000000 +0000",
    }
    command = ["git", *identity, *arguments]
    return subprocess.run(
        command, cwd=tree, capture_output=True, text=True, check=True, env=environment
    ).stdout.strip()


@pytest.fixture
def committed(tree: Path) -> Path:
    git(tree, "init", "--quiet")
    git(tree, "add", "--all")
    git(tree, "commit", "--quiet", "--message=all")
    return tree


def test_the_commit_and_its_time_are_what_an_image_is_from(committed: Path) -> None:
    assert revision(committed) == {
        "commit": git(committed, "rev-parse", "HEAD"),
        "epoch": 1700000000,
        "note": "",
    }


def test_uncommitted_changes_are_told_and_labelled(committed: Path) -> None:
    path = committed / "train" / "cli.py"
    path.write_text(path.read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")
    found = revision(committed)
    assert str(found["commit"]).endswith("-modified")
    assert found["note"]


def test_a_tree_without_a_commit_gets_a_fixed_time_and_says_so(tree: Path) -> None:
    found = revision(tree, GIT_CEILING_DIRECTORIES=str(tree.parent))
    assert (found["commit"], found["epoch"]) == ("unknown", 1767225600)
    assert "1767225600" in str(found["note"])


def test_source_date_epoch_wins(committed: Path) -> None:
    assert revision(committed, SOURCE_DATE_EPOCH="1600000000")["epoch"] == 1600000000


def test_the_context_is_the_same_whatever_the_checkout_s_modes_and_leftovers(
    tree: Path, tmp_path: Path
) -> None:
    def listing(name: str) -> list[tuple[str, int, int]]:
        folder = tmp_path / name
        folder.mkdir()
        code = "import sys, pathlib; from images.context import prepare"
        code += "; prepare(pathlib.Path(sys.argv[1]), 'cpu', 1000)"
        subprocess.run([sys.executable, "-c", code, str(folder)], cwd=tree, check=True)
        paths = sorted(folder.rglob("*"))
        return [(str(p.relative_to(folder)), p.stat().st_mode & 0o777, int(p.stat().st_mtime)) for p in paths]

    before = listing("before")
    for path in [*tree.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
    (tree / "train" / "__pycache__").mkdir()
    (tree / "train" / "__pycache__" / "cli.cpython-311.pyc").touch()
    (tree / "train" / ".cli.py.swp").touch()
    assert listing("after") == before
    names = [name for name, _, _ in before]
    assert "train/cli.py" in names
    assert "images/rendered/cpu/Dockerfile" in names
    assert not any(name.startswith(("images/backends", "images/rendered/cuda", "tests")) for name in names)
