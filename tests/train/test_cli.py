"""The train command in a process of its own: fast help, clear faults, the exit codes of the design."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train.cli import call

Command = Callable[..., "subprocess.CompletedProcess[str]"]
HEAVY = ("torch", "transformers", "peft", "matplotlib", "numpy", "datasets", "accelerate")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["verify", "--help"],
        ["--json-schema"],
        [],
        ["--adapter", "lora"],
        ["--adapter", "lora", "--model", "/none", "--data", "/none", "--output", "/none"],
    ],
)
def test_help_and_faults_import_no_heavy_library(arguments: list[str]) -> None:
    script = (
        "import sys; from train.cli import call; call(sys.argv[1:]);"
        f"print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )
    assert done.stdout.endswith("HEAVY []\n"), done.stdout + done.stderr


def test_all_places_that_cannot_serve_are_named_at_once(
    train_command: Command, tiny: Path, tmp_path: Path
) -> None:
    done = train_command(
        "--adapter", "lora", "--model", tmp_path / "none", "--data", tmp_path, "--eval-data", tmp_path / "x",
        "--output", tiny,
    )  # fmt: skip
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 78
    parts = ("is no folder", "no file to read", "cannot be read", "not empty")
    assert all(part in line for part, line in zip(parts, lines, strict=True)), lines


def test_an_output_below_a_file_is_refused(
    train_command: Command, recipe: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    done = train_command(
        "--adapter",
        "lora",
        "--model",
        recipe["model"],
        "--data",
        recipe["data"],
        "--output",
        tmp_path / "file" / "out",
    )
    assert (done.returncode, "is no folder that uid" in done.stderr) == (78, True)


def test_help_names_every_command_and_flag(train_command: Command) -> None:
    done = train_command("--help")
    assert done.returncode == 0
    for word in (
        "--adapter",
        "--model",
        "--data",
        "--output",
        "--eval-data",
        "--config",
        "--set",
        "verify",
        "make-tiny",
    ):
        assert word in done.stdout


def test_the_schema_is_json_and_has_every_field(train_command: Command) -> None:
    schema = json.loads(train_command("--json-schema").stdout)
    assert {"adapter", "model", "lora", "oft", "learning_rate"} <= set(schema["properties"])


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--modle", "x"], 64, "--model"),
        (["verfy"], 64, "Did you mean 'verify'"),
        (["--adapter", "lora", "verify"], 64, "--adapter: belongs to fine-tuning"),
        (["--adapter", "lorra", "--model", "m", "--data", "d", "--output", "o"], 78, "'lorra'"),
        (
            ["--adapter", "lora", "--model", "/none", "--data", "d", "--output", "OUT"],
            78,
            "--model /none: is no folder",
        ),
        (
            ["--adapter", "lora", "--model", "TINY", "--data", "/none.jsonl", "--output", "OUT"],
            65,
            "/none.jsonl: cannot be read",
        ),
        (["make-tiny", "--kind", "audio", "--output", "OUT"], 64, "--kind audio"),
        (["make-tiny", "--output", "TINY"], 78, "is not empty"),
        (["make-tiny", "--output", "/proc/none"], 78, "cannot be written"),
    ],
)
def test_faults_have_a_place_a_code_and_no_traceback(
    train_command: Command, tiny: Path, tmp_path: Path, arguments: list[str], code: int, text: str
) -> None:
    places = {"TINY": str(tiny), "OUT": str(tmp_path / "out")}
    done = train_command(*[places.get(argument, argument) for argument in arguments])
    assert done.returncode == code, done.stderr
    assert text in done.stderr
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_the_command_trains_and_says_where_the_results_are(
    train_command: Command, recipe: dict[str, Any], adapter: str
) -> None:
    done = train_command(
        "--adapter", adapter, "--model", recipe["model"], "--data", recipe["data"],
        "--output", recipe["output"],
        "--set", "max_steps=3", "--set", "learning_rate=1e-2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "finished: 3 steps" in done.stdout
    assert "an untrained model starts here" in done.stdout
    assert "prompt: " in done.stdout
    assert done.stderr == ""


def test_two_processes_give_the_same_losses_to_the_last_digit(
    train_command: Command, recipe: dict[str, Any], tmp_path: Path
) -> None:
    found = []
    for name in ("first", "second"):
        done = train_command(
            "--adapter", "oft", "--model", recipe["model"], "--data", recipe["data"],
            "--output", tmp_path / name,
            "--set", "max_steps=3", "--set", "num_generations=0",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        lines = (tmp_path / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        found.append([json.loads(line)["loss"] for line in lines])
    assert found[0] == found[1]


def test_make_tiny_gives_the_same_bytes_in_two_processes(train_command: Command, tmp_path: Path) -> None:
    for name in ("first", "second"):
        assert train_command("make-tiny", "--kind", "text", "--output", tmp_path / name).returncode == 0
    names = sorted(path.name for path in (tmp_path / "first").iterdir())
    assert "model.safetensors" in names
    for name in names:
        assert (tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes(), name
    assert (tmp_path / "first" / "model.safetensors").stat().st_mode & 0o444 == 0o444


def test_a_log_in_another_encoding_costs_no_run(train_command: Command, recipe: dict[str, Any]) -> None:
    done = train_command(
        "--adapter", "lora", "--model", recipe["model"], "--data", recipe["data"],
        "--output", recipe["output"], "--set", "max_steps=2", "--set", "num_generations=2",
        PYTHONIOENCODING="ascii",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "\\u" in done.stdout


def test_data_from_a_pipe_is_refused(train_command: Command, recipe: dict[str, Any], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = train_command(
        "--adapter",
        "lora",
        "--model",
        recipe["model"],
        "--data",
        tmp_path / "pipe",
        "--output",
        recipe["output"],
    )
    assert (done.returncode, "which can be read only once" in done.stderr) == (65, True)


def test_data_may_be_given_many_times(train_command: Command, recipe: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("prompt,completion\na,b\n", encoding="utf-8")
    few = ["max_steps=1", "num_generations=0", "device=cpu"]
    done = train_command(
        *("--adapter", "lora", "--model", recipe["model"], "--output", tmp_path / "out"),
        *("--data", recipe["data"], "--data", tmp_path / "b.csv"),
        *(word for text in few for word in ("--set", text)),
    )
    assert done.returncode == 0, done.stderr
    assert "b.csv: kept 1 of 1 rows (prompt/completion 1)" in done.stdout
    assert "mixture: 17 samples an epoch" in done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--adapter", "lora", "--adapter", "oft"],
        ["--adapter", "lora", "--eval-data", "a", "--eval-data=b"],
        ["eval", "--model", "m", "--data", "a", "--data", "b"],
        ["check-data", "--model", "m", "--model", "n"],
    ],
)
def test_an_option_of_one_value_that_is_given_twice_is_an_error(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(arguments) == 64
    assert "is given twice\nhint: give it once" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["model", "data", "output", "eval_data"])
def test_an_empty_path_is_not_the_current_folder(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = {"adapter": "lora", "model": "m", "data": "d", "output": "o"} | {name: ""}
    pairs = [(f"--{key.replace('_', '-')}", value) for key, value in given.items()]
    assert call([part for pair in pairs for part in pair]) == 78
    said = capsys.readouterr().err
    assert f"--{name.replace('_', '-')}" in said and "is empty, a path is due" in said
