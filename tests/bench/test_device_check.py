"""The prepared check of a device runs to its end anywhere, and records what fails or is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import device_check
import device_parts
import device_steps
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def dry(*arguments: Any, **environment: str) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [ROOT / "tests" / "device_check.sh", "--dry", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1", **environment},
        check=False,
    )
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.slow
def test_dry_every_part_runs_to_its_end(tmp_path: Path) -> None:
    code, report, errors = dry("--output", tmp_path / "report.json")
    statuses = {name: part["status"] for name, part in report["parts"].items()}
    assert statuses.pop("verify") in ("passed", "skipped")  # the CPU may have nothing that is verified
    assert statuses == dict.fromkeys(device_parts.PARTS.keys() - {"verify"}, "passed"), report
    assert code == 0
    assert json.loads((tmp_path / "report.json").read_text()) == report
    for part in report["parts"].values():
        for figures in part.get("variants", {}).values():
            assert figures.get("tokens_per_second", 1) > 0
    counted = report["parts"]["launches"]["variants"]
    assert counted["isotune OFT exact, packed"]["operators"] < counted["PEFT OFT exact, padded"]["operators"]
    assert len(errors.splitlines()) == len(device_parts.PARTS)


def test_without_peft_what_needs_it_is_skipped_and_the_bare_model_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = device_steps.Place("cpu", True, 0.0)
    monkeypatch.setattr(device_steps, "find_spec", lambda name: None)
    with pytest.raises(device_steps.Skipped, match="peft is not installed"):
        device_steps.stepper(place, device_steps.TINY, "PEFT LoRA", False)
    step, tokens = device_steps.stepper(place, device_steps.TINY, "bare", False)
    step()
    assert tokens > 0


def test_a_part_that_does_not_end_in_time_is_a_failure_with_its_limit() -> None:
    import argparse

    options = argparse.Namespace(dry=True)
    found = device_check._child(options, "rotations", None, 1.01)
    assert found["status"] == "failed"
    assert found["reason"] == "did not end within 1 s"
    assert device_check._child(options, "rotations", None, 0.5)["status"] == "skipped"


def test_a_wheel_is_unpacked_only_where_its_module_is_missing(tmp_path: Path) -> None:
    import zipfile

    for name in ("torch-9.9-py3-none-any.whl", "nosuchmodule-1.0-py3-none-any.whl"):
        with zipfile.ZipFile(tmp_path / name, "w") as wheel:
            wheel.writestr(f"{name.split('-')[0]}/__init__.py", "")
    assert device_check._unpack(tmp_path, tmp_path / "site") == ["nosuchmodule-1.0-py3-none-any.whl"]
    assert [path.name for path in (tmp_path / "site").iterdir()] == ["nosuchmodule"]
