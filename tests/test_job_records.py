"""The records of long jobs: true to how the job ended, without places of the machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import record


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(record, "RECORDS", tmp_path)
    return tmp_path / "job.txt"


def job(code: str) -> list[str]:
    return ["job", "--", sys.executable, "-c", code]


def test_a_job_that_passes_is_recorded_with_what_ran_and_what_it_said(kept: Path) -> None:
    assert record.main(job("print('3 passed')")) == 0
    said = kept.read_text(encoding="utf-8")
    assert "command: python" in said
    assert "outcome: passed in " in said
    assert said.endswith("\n\n3 passed\n")


def test_a_job_that_fails_is_recorded_as_failed_and_keeps_its_exit_code(kept: Path) -> None:
    assert record.main(job("import sys; print('x', file=sys.stderr); sys.exit(3)")) == 3
    said = kept.read_text(encoding="utf-8")
    assert "outcome: failed: exit code 3 in " in said
    assert said.endswith("\n\nx\n")


def test_only_the_last_lines_are_kept(kept: Path) -> None:
    record.main(job("print('\\n'.join(str(number) for number in range(1000)))"))
    lines = kept.read_text(encoding="utf-8").split("\n\n", 1)[1].splitlines()
    assert lines == [str(number) for number in range(1000 - record.TAIL, 1000)]


def test_places_of_the_machine_are_cut_and_those_of_an_image_stay() -> None:
    line = f"{record.ROOT}/tests/test_x.py /home/me/bin/python /out/run.json tests/a.py ../../x/y.py 1/2"
    expected = "tests/test_x.py .../python /out/run.json tests/a.py .../y.py 1/2"
    assert record.without_places(line) == expected
    assert record.without_places("'/var/lib/x':/model") == "'.../x':/model"
    assert (
        record.without_places("'https://files.example/simple/x': git+ssh://me@host/x.git")
        == "'ADDRESS': ADDRESS"
    )


def test_the_commit_says_where_files_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "ROOT", tmp_path)
    assert record.commit() == "unknown"
    for words in (
        ["init", "-q"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x"],
    ):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True)
    assert record.commit().isalnum()
    (tmp_path / "tests/records").mkdir(parents=True)
    (tmp_path / "tests/records/job.txt").touch()
    assert record.commit().isalnum()
    (tmp_path / "new").touch()
    assert record.commit().endswith(", with changes")


@pytest.mark.parametrize("arguments", [[], ["job"], ["a/b", "--", "true"], ["job", "true", "x"]])
def test_what_is_no_job_is_refused(kept: Path, arguments: list[str]) -> None:
    assert record.main(arguments) == 64
    assert not kept.exists()
