"""build.py from outside: answers at once, imports little, and every wrong word gets a suggestion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(
    *arguments: str, python: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *python, "build.py", *arguments]
    variables = {**os.environ, **environment}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=variables)


def test_no_arguments_print_the_help() -> None:
    done = run()
    assert done.returncode == 0
    assert done.stdout == run("--help").stdout
    assert "--backend" in done.stdout


def test_list_shows_every_backend_with_its_lock_and_digest() -> None:
    done = run("list")
    assert done.returncode == 0
    rows = {line.split()[0]: line for line in done.stdout.splitlines()[1:]}
    assert sorted(rows) == ["ascend", "ascend-a3", "cpu", "cuda", "cuda13", "hygon", "hygon-training"]
    assert " locked " in rows["cpu"]
    assert " unresolved " in rows["ascend"]
    assert "dtk,dcu,hcu" in rows["hygon"]


def test_list_speaks_json() -> None:
    rows = json.loads(run("list", "--json").stdout)
    assert {row["backend"] for row in rows} == {"ascend", "cpu", "cuda", "hygon"}
    assert all(row["lock"] in ("locked", "missing", "stale") for row in rows)


@pytest.mark.parametrize(
    "arguments", [["list"], ["--help"], ["render", "--check"], ["lock", "--backend=cpu", "--check"]]
)
def test_what_builds_nothing_imports_neither_torch_nor_docker(arguments: list[str]) -> None:
    code = (
        "import sys, build\n"
        "try:\n    build.main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "print(sorted(set(sys.modules) & {'torch', 'docker', 'train', 'transformers', 'requests'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_needs_nothing_installed() -> None:
    assert run("--help", python=("-S", "-E")).returncode == 0


def test_a_missing_package_is_told_with_its_cure() -> None:
    done = run("list", python=("-S", "-E"))
    assert done.returncode == 69
    assert "is not installed" in done.stderr
    assert (
        "hint: python3 -m pip install --require-hashes -r images/locks/tools/requirements.txt" in done.stderr
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["lst"], "did you mean 'list'?"),
        (["--backend=cudaa"], "did you mean 'cuda'?"),
        (["--backnd=cpu"], "did you mean --backend?"),
        (["lock", "--backend=cpu", "--chek"], "did you mean --check?"),
        (["zzzz"], "commands: list, lock, render, lint, "),
    ],
)
def test_a_wrong_word_gets_a_suggestion_and_exit_64(arguments: list[str], hint: str) -> None:
    done = run(*arguments)
    assert done.returncode == 64
    assert done.stderr.startswith("error: ")
    assert hint in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["lock"],
        ["lock", "--backend=cpu", "--tools"],
        ["lock", "--check", "--resolve-base"],
        ["lock", "--variant=a3", "--check"],
        ["matrix", "--rules", "--update=x"],
        ["build-info", "--prefix=x"],
        ["--output=tar:x", "--backend=cpu"],
    ],
)
def test_options_that_make_no_sense_are_usage_errors(arguments: list[str]) -> None:
    assert run(*arguments).returncode == 64


def test_without_an_engine_the_files_are_rendered_and_the_way_on_is_told() -> None:
    done = run("--backend=cpu", DOCKER_HOST="unix:///nowhere/docker.sock")
    assert done.returncode == 69
    assert "images/rendered/cpu: up to date" in done.stderr
    assert "error: engine: no Docker Engine answers at unix:///nowhere/docker.sock" in done.stderr
    assert "hint: images/rendered/cpu is ready: start Docker" in done.stderr
    assert done.stdout == ""


def test_render_only_needs_neither_engine_nor_lock() -> None:
    done = run("--backend=ascend", "--render-only", DOCKER_HOST="unix:///nowhere/docker.sock")
    assert done.returncode == 0, done.stderr
    assert "images/rendered/ascend: up to date" in done.stderr


def test_a_program_reads_build_py_s_output_and_closes_early() -> None:
    shell = f"{sys.executable} build.py list --json | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", shell], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "Traceback" not in done.stderr
