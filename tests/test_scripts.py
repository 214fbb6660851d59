"""quickstart.sh and test.sh: wrong calls are told in a line, and the closing table holds what the runs
found.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from images.summary import table_lines

ROOT = Path(__file__).resolve().parent.parent


def quickstart(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(ROOT / "quickstart.sh"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={**os.environ, "VENV": "/nonexistent/venv", **environment},
    )


def shell(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash with images/venv.sh sourced."""
    return subprocess.run(
        ["bash", "-c", f". images/venv.sh; {script}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **environment},
    )


def test_help_is_the_head_of_the_script() -> None:
    done = quickstart("--help")
    assert done.returncode == 0
    assert "--with-engine | --no-engine" in done.stdout
    assert "set -euo" not in done.stdout


def test_an_unknown_option_is_a_usage_error(tmp_path: Path) -> None:
    done = quickstart("--with-engin", RESULTS=str(tmp_path / "none"))
    assert (done.returncode, done.stderr.startswith("error: quickstart.sh: unknown option --with-engin")) == (
        64,
        True,
    )


def test_an_engine_that_was_insisted_on_and_does_not_answer_is_an_error(tmp_path: Path) -> None:
    done = quickstart("--with-engine", RESULTS=str(tmp_path / "none"), DOCKER_HOST="unix:///nonexistent.sock")
    assert done.returncode == 69
    assert "no Docker Engine answers" in done.stderr
    assert "--no-engine" in done.stderr


def test_results_are_never_written_over(tmp_path: Path) -> None:
    done = quickstart("--no-engine", RESULTS=str(tmp_path))
    assert (done.returncode, f"{tmp_path}: exists already" in done.stderr) == (78, True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("lock", "version", "machine", "served"),
    [
        ("cpu", "3.11", "x86_64", True),
        ("cpu", "3.12", "x86_64", True),
        ("cpu", "3.10", "aarch64", True),
        ("cpu", "3.10", "x86_64", False),  # nobody has told the hash of that torch wheel
        ("cpu", "3.13", "x86_64", False),
        ("cpu", "3.9", "x86_64", False),
    ],
)
def test_a_python_serves_only_where_the_lock_has_every_wheel(
    tmp_path: Path, lock: str, version: str, machine: str, served: bool
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho {version}\n", encoding="utf-8")
    python.chmod(0o755)
    done = shell(f"uname() {{ echo {machine}; }}; covered {lock} {python}")
    assert (done.returncode == 0) is served, done.stderr


def test_a_python_that_was_named_is_never_replaced_by_another(tmp_path: Path) -> None:
    done = shell("find_python tools", PYTHON="/nonexistent/python")
    assert (done.returncode, done.stdout) == (69, "")
    assert "cannot serve /nonexistent/python" in done.stderr


def test_build_options_without_an_engine_are_refused(tmp_path: Path) -> None:
    done = quickstart("--no-engine", "--", "--base-image", "x", RESULTS=str(tmp_path / "none"))
    assert (done.returncode, "--base-image: build options have no effect" in done.stderr) == (64, True)


def test_without_a_python_that_serves_nothing_is_made(tmp_path: Path) -> None:
    done = shell(f"make_venv {tmp_path / 'venv'} cpu", PYTHON="/nonexistent")
    assert done.returncode == 69
    assert not (tmp_path / "venv").exists()


def test_the_table_has_a_row_per_run(tmp_path: Path) -> None:
    for adapter, loss in (("lora", 4.2), ("oft", 4.1)):
        (tmp_path / adapter).mkdir()
        results = {
            "num_trainable_parameters": 63488,
            "first_loss": 6.3664,
            "last_loss": loss,
            **({"eval_loss_before": 7.1, "eval_loss_after": 0.5} if adapter == "oft" else {}),
            "generations": [{"prompt": "What?", "before": "b", "after": f"by {adapter}", "wanted": "w"}],
            "seconds": 41.7,
            "peak_memory_bytes": 2**29,
        }
        run = {"recipe": {"adapter": adapter}, "results": results}
        (tmp_path / adapter / "run.json").write_text(json.dumps(run), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "images/summary.py", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == table_lines(tmp_path)
    assert [line.split() for line in table_lines(tmp_path)[1:3]] == [
        ["lora", "63,488", "6.366", "4.200", "-", "42", "512", "MiB"],
        ["oft", "63,488", "6.366", "4.100", "7.100", "->", "0.500", "42", "512", "MiB"],
    ]
    answers = [line.split() for line in table_lines(tmp_path)[3:-1]]
    assert answers[0] == ["prompt:", "What?"]
    assert answers[1:] == [["before:", "b"], ["lora:", "by", "lora"], ["oft:", "by", "oft"], ["wanted:", "w"]]
    assert str(tmp_path) in table_lines(tmp_path)[-1]


def test_a_slow_job_that_does_not_exist_is_told_before_any_runs() -> None:
    command = ["bash", str(ROOT / ".ci" / "slow"), "sets", "lunch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr == "error: .ci/slow: no job lunch: sets, launch, podman, checkov, standins\n"
