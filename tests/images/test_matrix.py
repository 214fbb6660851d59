"""The matrix says what specs, locks and evidence say, and claims nothing that no evidence shows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from build_command import ROOT, BuildCommand

from images import matrix
from images.errors import UserError
from images.evidence import Evidence, read_evidence, summary, write_evidence
from images.lockfile import read_lock
from images.specfile import load_specs

LOCK = read_lock("cpu")


def evidence(**changes: Any) -> Evidence:
    assert LOCK
    checks = [
        {"part": "build", "name": "versions", "status": "passed", "seconds": 0.1, "detail": ""},
        {"part": "build", "name": "torch", "status": "skipped", "seconds": 0.1, "detail": "no driver"},
        {"part": "device", "name": "seen", "status": "skipped", "seconds": 0.1, "detail": "no device"},
    ]
    verify = {
        "isotune": "0.1.0",
        "backend": "cpu",
        "status": "passed",
        "passed": 1,
        "failed": 0,
        "skipped": 2,
    }
    data: dict[str, Any] = {
        "image": "cpu",
        "lock_id": LOCK.lock_id,
        "architecture": "x86_64",
        "commit": "0" * 40,
        "date": "2026-11-30",
        "base": "stand-in",
        "place": "Debian bookworm",
        "verify": {**verify, "checks": checks},
    }
    return Evidence.model_validate({**data, **changes})


def test_there_is_one_row_per_image_with_its_own_versions() -> None:
    rows = {row["image"]: row for row in matrix.rows(load_specs().values())}
    assert sorted(rows) == sorted(load_specs())
    assert rows["ascend"]["torch"] == {"aarch64": "2.10.0", "x86_64": "2.10.0+cpu"}
    assert rows["ascend"]["toolkit"] == {"name": "cann", "version": "9.1.0"}
    assert rows["cpu"]["unresolved"] == ["cp310 x86_64"]
    assert rows["cuda13"]["driver"] == {"minimum": "580", "maximum": "none"}


def test_the_table_is_markdown_with_aligned_columns() -> None:
    lines = matrix.table(matrix.rows(load_specs().values())).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert all(line.startswith("| ") and line.endswith(" |") for line in lines)
    assert [len(line.split(" | ")) for line in lines] == [len(matrix.HEADINGS)] * (len(load_specs()) + 2)


def test_nothing_is_claimed_without_evidence(tmp_path: Path) -> None:
    assert summary(read_evidence("cpu", tmp_path), LOCK) == "unknown"
    assert summary([evidence()], None) == "unknown (evidence of an older lock)"
    assert summary([evidence(lock_id="0" * 12)], LOCK) == "unknown (evidence of an older lock)"


def test_skipped_is_never_told_as_passed_and_a_stand_in_is_told() -> None:
    words = "build 1 passed, 1 skipped / device 1 skipped (stand-in base, x86_64)"
    assert summary([evidence()], LOCK) == words
    emulated = evidence(base="named", architecture="aarch64", emulated=True)
    assert (
        summary([evidence(), emulated], LOCK)
        == f"{words}; {words.partition('(')[0]}(named base, aarch64 emulated)"
    )


def test_a_failure_is_told_first() -> None:
    failed = json.loads(evidence().model_dump_json())
    failed["verify"]["checks"][0]["status"] = "failed"
    assert summary([Evidence.model_validate(failed)], LOCK).startswith("build 1 failed, 1 skipped")


def test_evidence_survives_writing_and_reading(tmp_path: Path) -> None:
    path = write_evidence(evidence(), tmp_path)
    assert path == tmp_path / "cpu/stand-in-x86_64.json"
    assert read_evidence("cpu", tmp_path) == [evidence()]


def test_every_broken_file_of_evidence_is_named(tmp_path: Path) -> None:
    write_evidence(evidence(), tmp_path)
    (tmp_path / "cpu/broken.json").write_text('{"image": "cpu"}', encoding="utf-8")
    (tmp_path / "cpu/other.json").write_text(evidence(image="cuda").model_dump_json(), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read_evidence("cpu", tmp_path)
    first, second = caught.value.message.splitlines()
    assert "broken.json: not evidence: lock_id: field required" in first
    assert "other.json: is of cuda, in the folder of cpu" in second


def test_committed_evidence_is_of_an_image_that_a_spec_makes() -> None:
    folder = ROOT / "images/evidence"
    assert {path.parent.name for path in folder.glob("*/*.json")} <= {*load_specs(), "sizes", "reproduced"}
    assert {path.stem.rpartition("-")[0] for path in folder.glob("sizes/*.json")} <= set(load_specs())


def test_the_rules_are_printed_with_their_sources(build_py: BuildCommand) -> None:
    done = build_py("matrix", "--rules")
    assert done.returncode == 0
    assert "torch-npu 2.10.0.post4  needs  torch 2.10.0, cann >=8.5,<9.3" in done.stdout
    assert "transformers and peft (MIN_PEFT_VERSION in transformers' integrations/peft.py, P)" in done.stdout


def test_a_file_gets_the_matrix_between_its_marks(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(f"before\n{matrix.BEGIN}\nold\n{matrix.END}\nafter\n", encoding="utf-8")
    assert matrix.update(path, "new") is True
    assert path.read_text(encoding="utf-8") == f"before\n{matrix.BEGIN}\nnew\n{matrix.END}\nafter\n"
    assert matrix.update(path, "new") is False


@pytest.mark.parametrize("text", ["nothing", matrix.BEGIN, None])
def test_a_file_without_marks_is_left_alone(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "page.md"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=r"has no marks|cannot be read"):
        matrix.update(path, "new")
    assert not path.exists() or path.read_text(encoding="utf-8") == text


def test_options_of_matrix_exclude_each_other(build_py: BuildCommand) -> None:
    assert build_py("matrix", "--json", "--rules").returncode == 64
    assert json.loads(build_py("matrix", "--json").stdout)[0]["image"] == "ascend"
