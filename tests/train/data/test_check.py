"""`train check-data`: everything that is wrong with a file, and what would be learned of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train.cli import call
from train.data.lengths import histogram, quantiles
from train.data.shown import marked, segments
from train.data.template import ChatTemplate
from train.loop.model import load_tokenizer

SHORT = {"instruction": "a", "input": "", "output": "b"}
LONG = {"instruction": "What is momentum? " * 30, "input": "", "output": "b"}

Write = Callable[..., Path]


@pytest.fixture
def check(tiny: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Exit code, stdout and stderr of `train check-data` on a file."""

    def run(path: Path, *rest: str) -> tuple[int, str, str]:
        code = call(["check-data", "--model", str(tiny), "--data", str(path), *rest])
        found = capsys.readouterr()
        return code, found.out, found.err

    return run


def test_a_good_file_is_said_to_be_one(check: Any, write_rows: Write) -> None:
    path = write_rows(SHORT, LONG)
    code, out, err = check(path)
    assert (code, err) == (0, "")
    assert f"{path}: kept 2 of 2 rows (alpaca 2)" in out
    assert f"the longest sample is at {path}:2" in out
    assert "######" in out


def test_all_bad_rows_are_in_the_json_and_twenty_in_the_lines(check: Any, write_rows: Write) -> None:
    path = write_rows(*[SHORT] * 3, *["{"] * 25)
    code, out, err = check(path)
    assert code == 65
    assert (out.count("is not valid JSON"), "and 5 more bad rows" in out) == (20, True)
    assert f"error: {path}: 25 of 28 rows are bad\nhint: mend or remove" in err
    code, out, err = check(path, "--json")
    (found,) = json.loads(out)["files"]
    assert (code, found["ok"], len(found["bad_rows"])) == (65, False, 25)
    assert found["bad_rows"][0]["place"] == f"{path}:4"


def test_what_would_be_left_out_or_cut_is_counted_under_the_recipe_s_policies(
    check: Any, write_rows: Write, tmp_path: Path
) -> None:
    path = write_rows(SHORT, LONG, LONG)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("adapter: oft\nmax_length: 64\noft: {oft_block_size: 16}\n", encoding="utf-8")
    code, out, _ = check(path, "--config", str(recipe), "--json")
    (found,) = json.loads(out)["files"]
    assert (code, found["num_kept"], found["num_too_long"], len(found["too_long"])) == (0, 1, 2, 2)
    assert found["smallest_max_length"] == found["too_long"][0]["tokens"]
    code, out, err = check(path, "--config", str(recipe), "--set", "overlong=error")
    assert (code, "2 samples are longer than max_length 64" in err) == (65, True)
    assert "longer than max_length" in out
    code, out, _ = check(path, "--set", "max_length=64", "--set", "overlong=cut-prompt", "--json")
    (found,) = json.loads(out)["files"]
    assert (code, found["num_cut"], found["cut"]) == (0, 2, [f"{path}:2", f"{path}:3"])
    assert found["num_duplicates"] == 1


def test_shown_samples_have_what_is_learned_in_brackets_and_their_special_tokens(
    check: Any, write_rows: Write
) -> None:
    path = write_rows(SHORT, {**SHORT, "output": "zwei 量"}, SHORT)
    _, out, _ = check(path, "--print-sample", "2")
    assert "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n⟦b<|im_end|>⟧\n" in out
    assert "⟦zwei 量<|im_end|>⟧" in out
    assert out.count("--- ") == 2


def test_a_file_that_cannot_be_read_does_not_hide_the_other(
    check: Any, write_rows: Write, tmp_path: Path
) -> None:
    path = write_rows(SHORT)
    code, out, err = check(tmp_path / "none.jsonl", "--eval-data", str(path))
    assert (code, "none.jsonl: cannot be read" in err, f"{path}: kept 1 of 1" in out) == (65, True, True)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["--set", "max_lenght=3"], 78, "max_length"),
        (["--set", "thinking=off"], 78, "thinking off"),
        (["--set", "output=here", "--set", "adapter=none"], 78, "'none'"),
    ],
)
def test_faults_of_the_recipe_are_those_of_a_run(
    check: Any, write_rows: Write, arguments: list[str], code: int, text: str
) -> None:
    found, _, err = check(write_rows(SHORT), *arguments)
    assert (found, text in err) == (code, True), err


def test_no_weights_are_read(check: Any, write_rows: Write, tiny: Path, tmp_path: Path) -> None:
    for path in tiny.iterdir():
        if path.suffix != ".safetensors":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    assert call(["check-data", "--model", str(tmp_path), "--data", str(write_rows(SHORT))]) == 0


def test_bins_double_and_the_limit_ends_one() -> None:
    lengths = [9, 10, 17, 100, 101, 300]
    assert histogram(lengths, 100) == [
        (9, 16, 2), (17, 32, 1), (33, 64, 0), (65, 100, 1), (101, 128, 1), (129, 256, 0), (257, 300, 1),
    ]  # fmt: skip
    assert histogram([5], 2048) == [(1, 5, 1)]
    assert quantiles([3, 1, 2]) == {"shortest": 1, "median": 2, "p95": 3, "p99": 3, "longest": 3}


def test_segments_together_are_the_whole_text(tiny: Path) -> None:
    tokenizer = load_tokenizer(tiny)
    from conversations import chat

    sample = ChatTemplate(tokenizer).sample(chat("q 量", "one", "r", "zwei"))
    parts = segments(tokenizer, sample)
    assert "".join(text for text, _ in parts) == tokenizer.decode(list(sample.input_ids))
    assert marked(parts).count("⟦") == 2


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from train.cli import call; call(['check-data', '--help']);"
        "print('HEAVY', [name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("HEAVY []\n")


def test_sources_are_checked_together_as_a_run_would_take_them(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        rows = [{"instruction": f"{name} {number}", "output": "c"} for number in range(4)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    mixed = f"data=[{{path: {tmp_path}/a.jsonl, weight: 2}}, {tmp_path}/b.jsonl]"
    assert call(["check-data", "--model", str(tiny), "--set", mixed]) == 0
    assert "weight 2: 8 an epoch" in capsys.readouterr().out
    few = mixed.replace("weight: 2", "weight: 0.01")
    assert call(["check-data", "--model", str(tiny), "--set", few, "--set", "per_device_tokens=9"]) == 65
    said = capsys.readouterr().err
    assert "weight 0.01 leaves none of its 4 rows" in said and "per_device_tokens is 9" in said


def test_every_data_that_is_given_is_checked(
    tiny: Path, write_rows: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text("{", encoding="utf-8")
    both = ["--data", str(other), "--data", str(write_rows(SHORT))]
    assert call(["check-data", "--model", str(tiny), *both]) == 65
    assert f"{other}:1" in capsys.readouterr().out


def test_samples_longer_than_the_model_was_made_for_are_told(
    tiny: Path, tmp_path: Path, write_rows: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny, model)
    content = json.loads((model / "config.json").read_text(encoding="utf-8"))
    (model / "config.json").write_text(json.dumps(content | {"max_position_embeddings": 4}), encoding="utf-8")
    assert call(["check-data", "--model", str(model), "--data", str(write_rows(SHORT))]) == 0
    assert "warning: one sample is longer than the model's 4 positions" in capsys.readouterr().out
