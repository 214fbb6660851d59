"""build-info of a plain virtual environment: found by path, with the hash of each package's RECORD."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from build_command import BuildCommand

from images import record


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """The shape of a virtual environment with two packages, one of them not in the lock."""
    site = tmp_path / "venv" / "lib" / "python3.12" / "site-packages"
    for name in ("huggingface_hub-2.4.0", "pip-26.0"):
        (site / f"{name}.dist-info").mkdir(parents=True)
        (site / f"{name}.dist-info" / "RECORD").write_text(
            f"{name}/__init__.py,sha256=x,1\n", encoding="utf-8"
        )
    return tmp_path / "venv"


def test_records_are_under_the_lock_s_names(environment: Path) -> None:
    digest = hashlib.sha256(b"huggingface_hub-2.4.0/__init__.py,sha256=x,1\n").hexdigest()
    assert record.records(environment)["huggingface-hub"] == digest


def test_build_info_describes_an_environment_made_from_the_lock(
    environment: Path, build_py: BuildCommand
) -> None:
    done = build_py("build-info", "--backend=cpu", f"--prefix={environment}")
    assert done.returncode == 0, done.stderr
    info = json.loads((environment / "build-info.json").read_text(encoding="utf-8"))
    assert list(info["records"]) == ["huggingface-hub"]
    assert info["packages"]["peft"] == "0.21.2"
    assert (info["base_image"], info["base_digest"], info["base_overridden"]) == ("none", "none", False)


def test_a_folder_that_is_no_environment_is_refused(tmp_path: Path, build_py: BuildCommand) -> None:
    done = build_py("build-info", "--backend=cpu", f"--prefix={tmp_path}")
    assert done.returncode == 78
    assert done.stderr.splitlines()[1].startswith("hint: --prefix takes the folder of a virtual environment")
    assert "expected one lib/python3*/site-packages, found 0" in done.stderr
    assert "Traceback" not in done.stderr
