"""eval, generate, merge, info and init_adapter by the train command: what is printed where, and the codes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Here = Callable[..., "tuple[int, str, str]"]
Adapters = Callable[..., Path]
HEAVY = ("torch", "transformers", "peft", "numpy", "accelerate")


def call(*arguments: Any) -> subprocess.CompletedProcess[str]:
    """The command, then a line with the heavy libraries that it imported."""
    script = (
        "import sys; from train.cli import call; code = call(sys.argv[1:]);"
        f"print('HEAVY', [name for name in {HEAVY!r} if name in sys.modules]); sys.exit(code)"
    )
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "arguments", [["eval", "--help"], ["generate", "--help"], ["merge", "--help"], ["info", "--help"]]
)
def test_help_imports_no_heavy_library(arguments: list[str]) -> None:
    done = call(*arguments)
    assert done.stdout.endswith("HEAVY []\n"), done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["lora", "oft"])
def test_info_says_what_an_adapter_is_without_heavy_libraries(
    adapter_of: Adapters, tiny: Path, kind: str
) -> None:
    done = call("info", adapter_of(kind), "--json")
    assert done.stdout.endswith("HEAVY []\n"), done.stdout + done.stderr
    facts = json.loads(done.stdout.rpartition("HEAVY")[0])
    assert facts["adapter"]["kind"] == kind
    assert facts["base"]["folder"] == tiny.name
    assert facts["base"]["model.safetensors"].startswith("sha256:")
    assert {"isotune", "torch", "transformers", "peft"} == set(facts["versions"])


def test_info_of_an_adapter_of_plain_peft_says_what_is_unknown(copy_of: Adapters) -> None:
    folder = copy_of("lora", {"peft_version": None, "base_model_name_or_path": None}, manifest=False)
    done = call("info", folder)
    assert "kind: lora" in done.stdout
    assert "peft: unknown" in done.stdout


def test_info_of_a_run_has_its_state_and_results(tmp_path: Path) -> None:
    content = {
        "status": "failed",
        "reason": "disk full",
        "recipe": {"adapter": "oft", "model": "/model", "seed": 3},
        "versions": {"torch": "2"},
        "results": {"num_steps": 4, "last_loss": 1.25, "generations": []},
    }
    (tmp_path / "run.json").write_text(json.dumps(content), encoding="utf-8")
    done = call("info", tmp_path)
    assert done.returncode == 0
    for line in ("  status: failed", "  reason: disk full", "  adapter: oft", "  last_loss: 1.25"):
        assert line in done.stdout.splitlines()
    assert "generations" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["info", "EMPTY"], 78, "has neither run.json nor adapter_config.json"),
        (["info", "/none"], 78, "/none: does not exist"),
        (["eval", "--model", "TINY"], 64, "--data"),
        (["eval", "--model", "TINY", "--data", "x", "--adapter", "oft"], 78, "--adapter oft: is a kind"),
        (
            ["merge", "--model", "TINY", "--adapter", "lora", "--output", "OUT"],
            78,
            "--adapter lora: is a kind",
        ),
        (["merge", "--model", "TINY", "--adapter", "EMPTY", "--output", "TINY"], 78, "is not empty"),
        (["merge", "--model", "TINY", "--adapter", "X", "--output", "OUT", "--dtype", "int8"], 64, "int8"),
        (["generate", "--model", "TINY"], 64, "--prompt, --data: one of them is due"),
        (["generate", "--model", "TINY", "--prompt", "a", "--data", "x"], 64, "one of them is due"),
        (["generate", "--model", "TINY", "--prompt", "a", "--limit", "1"], 64, "--limit 1: has no effect"),
        (
            ["generate", "--model", "TINY", "--prompt", "a", "--limit", "1"],
            64,
            "hint: leave it out, or add --data",
        ),
        (
            ["generate", "--model", "TINY", "--prompt", "a", "--max-new-tokens", "9" * 30],
            64,
            "--max-new-tokens",
        ),
        (["--adapter", "lora", "merge"], 64, "belongs to fine-tuning, not to merge"),
    ],
)
def test_faults_have_a_place_and_a_code_and_import_nothing_heavy(
    tiny: Path, tmp_path: Path, arguments: list[str], code: int, text: str
) -> None:
    (tmp_path / "empty").mkdir()
    places = {"TINY": str(tiny), "OUT": str(tmp_path / "out"), "EMPTY": str(tmp_path / "empty")}
    done = call(*[places.get(argument, argument) for argument in arguments])
    assert (done.returncode, done.stdout) == (code, "HEAVY []\n"), done.stdout + done.stderr
    assert text in done.stderr
    assert done.stderr.startswith("error: ")


@pytest.fixture
def here(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The command in this process, which has the libraries already: code, stdout, stderr."""
    from train.cli import call as call_here

    def run(*arguments: Any) -> tuple[int, str, str]:
        capfd.readouterr()
        code = call_here([str(argument) for argument in arguments])
        return (code, *capfd.readouterr())

    return run


@pytest.mark.parametrize(
    "command", [["eval", "--data", "ROWS"], ["generate", "--prompt", "hi", "--max-new-tokens", "2"]]
)
def test_json_is_all_that_stdout_holds(
    here: Here, copy_of: Adapters, tiny: Path, rows_file: Path, command: list[str]
) -> None:
    folder = copy_of("oft", manifest=False)
    arguments = [str(rows_file) if argument == "ROWS" else argument for argument in command]
    code, out, errors = here(*arguments, "--model", tiny, "--adapter", folder, "--json")
    assert code == 0, errors
    assert json.loads(out)
    assert "note: " in errors
    assert "device: cpu" in errors


def test_merge_says_how_well_it_went(here: Here, adapter_of: Adapters, tiny: Path, tmp_path: Path) -> None:
    places = ["--model", tiny, "--adapter", adapter_of("oft"), "--output", tmp_path / "merged"]
    code, out, errors = here("merge", *places)
    assert (code, errors) == (0, "")
    assert f"merged into {tmp_path / 'merged'} (float32): logits differ" in out


def test_a_base_that_is_another_one_has_its_code(
    here: Here, adapter_of: Adapters, rows_file: Path, tmp_path: Path
) -> None:
    assert here("make-tiny", "--output", tmp_path / "other", "--seed", "5")[0] == 0
    places = ["--model", tmp_path / "other", "--adapter", adapter_of("lora"), "--data", rows_file]
    code, _, errors = here("eval", *places)
    assert code == 78
    assert errors.startswith(f"error: --model {tmp_path / 'other'}: is not the base model")


def test_init_adapter_with_other_settings_is_refused_before_anything_heavy(
    recipe: dict[str, Any], adapter_of: Adapters
) -> None:
    places = [f"--{name}={recipe[name]}" for name in ("model", "data", "output")]
    done = call(
        "--adapter", "lora", *places, "--set", f"init_adapter={adapter_of('lora')}", "--set", "lora.r=2"
    )
    assert (done.returncode, done.stdout) == (78, "HEAVY []\n"), done.stderr
    assert done.stderr.startswith("error: lora.r: 2 was asked for")
