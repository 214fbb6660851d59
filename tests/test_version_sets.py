"""Environments with other versions: their own packages win, what they share comes from below."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import version_sets
import yaml

SHADOW = "__version__ = '0.0.1'\n"


@pytest.fixture
def layered(tmp_path: Path) -> Path:
    """An environment over this one, with a peft of its own that is one line long."""
    folder = tmp_path / "set"
    version_sets.layer(folder, version_sets.site_packages(Path(sys.prefix)), with_pip=False)
    own = version_sets.site_packages(folder)
    (own / "peft").mkdir()
    (own / "peft" / "__init__.py").write_text(SHADOW, encoding="utf-8")
    (own / "peft-0.0.1.dist-info").mkdir()
    (own / "peft-0.0.1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: peft\nVersion: 0.0.1\n"
    )
    return folder


def test_a_set_s_own_package_wins_and_the_rest_comes_from_below(layered: Path) -> None:
    code = "import json, peft, yaml; print(json.dumps([peft.__version__, yaml.__version__]))"
    command = [str(version_sets.python_of(layered)), "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == ["0.0.1", yaml.__version__]


def test_the_versions_told_are_those_that_are_imported(layered: Path) -> None:
    found = version_sets.versions(layered, ["peft", "pydantic", "no_such_package"])
    assert found == {"peft": "0.0.1", "pydantic": version("pydantic"), "no_such_package": "missing"}


def test_what_stands_after_two_dashes_is_pytest_s() -> None:
    options, rest = version_sets.parse(["B", "C", "--", "-m", "not slow", "tests/train"])
    assert (options.sets, rest) == (["B", "C"], ["-m", "not slow", "tests/train"])


def test_an_unknown_set_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        version_sets.parse(["D", "--", "-q"])
    assert "'D'" in capsys.readouterr().err


def test_a_record_says_what_ran_and_what_came_of_it() -> None:
    printed = [
        "bringing up nodes...",
        "....F                                          [100%]",
        "    assert it",
        "SKIPPED [1] tests/train/test_one.py:3: no file /somewhere/here/file.json",
        "FAILED tests/train/test_one.py::test_it - ValueError: https://files.example/simple/x: 'x'",
        "1 failed, 4 passed, 1 skipped in 3.21s",
    ]
    arguments = ["tests/train", "-m", "not slow"]
    tested = "0123456789ab, with changes"
    text = version_sets.record("H", tested, "torch 2.7.1", arguments, "failed: it", printed)
    lines = text.splitlines()
    assert lines[:2] == [
        "set H: failed: it",
        "command: python tests/version_sets.py H -- tests/train -m 'not slow'",
    ]
    assert lines[3] == "commit: 0123456789ab, with changes"
    assert lines[4].endswith(", torch 2.7.1")
    assert lines[5:] == [
        "",
        "SKIPPED [1] tests/train/test_one.py:3: no file .../file.json",
        "FAILED tests/train/test_one.py::test_it - ValueError: ADDRESS 'x'",
        "1 failed, 4 passed, 1 skipped in 3.21s",
    ]


def test_the_last_line_is_recorded_whatever_it_says() -> None:
    assert version_sets.record("H", "", "", [], "failed", ["INTERNALERROR> no disk"]).endswith(
        "\nINTERNALERROR> no disk\n"
    )


def test_failing_tests_and_a_set_that_cannot_be_made_end_with_1(
    layered: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The one set is there and its tests fail; the other one cannot be made."""

    def make(folder: Path, pins: dict[str, str]) -> None:
        if folder.name == "B":
            raise version_sets.NotMade("pip install: no such version")

    monkeypatch.setattr(version_sets, "make", make)
    layered.rename(tmp_path / "C")
    options, quiet = ["--folder", str(tmp_path)], ["--", "-q", "-p", "no:cacheprovider", "--no-header"]
    good, bad = tmp_path / "test_good.py", tmp_path / "test_bad.py"
    good.write_text("import os\ndef test_it(): assert 'C' in os.environ['ISOTUNE_TEST_PYTHON']\n")
    bad.write_text(f"def test_it(): assert not '{tmp_path}'\n")
    records = tmp_path / "records"
    options += ["--record", str(records)]
    assert version_sets.main([*options, "C", *quiet, str(good)]) == 0
    assert "set C: passed" in capsys.readouterr().out
    told = (records / "set-C.txt").read_text(encoding="utf-8").splitlines()
    assert told[0] == "set C: passed"
    assert told[-1].startswith("1 passed in ")
    assert version_sets.main([*options, "B", *quiet, str(good)]) == 1
    assert version_sets.main([*options, "B", "C", *quiet, str(bad)]) == 1
    written = {path.stem: path.read_text(encoding="utf-8") for path in records.iterdir()}
    assert "set B: failed: the environment could not be made: pip install" in written["set-B"]
    assert written["set-C"].startswith("set C: failed: pytest ended with 1\n")
    assert "\nFAILED " in written["set-C"]
    assert "peft 0.0.1" in written["set-C"]
    assert str(tmp_path) not in written["set-C"]
    out = capsys.readouterr().out
    assert "set B: failed: the environment could not be made: pip install: no such version" in out
    assert "set C: failed: pytest ended with 1" in out
    assert "peft 0.0.1" in out
