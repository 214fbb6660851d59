"""An adapter's whole life, each step in a process of its own, with the libraries of any Python.

ISOTUNE_TEST_PYTHON names one with other versions of transformers and peft; this Python else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PYTHON = os.environ.get("ISOTUNE_TEST_PYTHON", sys.executable)
ROOT = Path(__file__).resolve().parent.parent.parent
TRAIN = "from train.cli import main; main()"

# Plain peft and transformers, nothing of ours: logits of a model, an adapter's if one is named.
LOGITS = """
import json, sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
if len(sys.argv) > 2:
    from peft import PeftModel
    model = PeftModel.from_pretrained(model, sys.argv[2])
with torch.no_grad():
    print(json.dumps(model.eval()(torch.arange(20, 60).unsqueeze(0)).logits[0, -1].tolist()))
"""
WRITE = """
import sys, torch
from peft import LoraConfig, OFTConfig, get_peft_model
from transformers import AutoModelForCausalLM
torch.manual_seed(0)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
names = ["q_proj", "down_proj"]
config = {
    "lora": LoraConfig(r=4, target_modules=names, task_type="CAUSAL_LM"),
    "oft": OFTConfig(oft_block_size=16, target_modules=names, task_type="CAUSAL_LM"),
}[sys.argv[3]]
adapted = get_peft_model(model, config)
with torch.no_grad():
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.normal_(std=0.03)
adapted.save_pretrained(sys.argv[2])
"""


def python(script: str, *arguments: Any) -> str:
    """What a script prints in a fresh process; the test fails where it does."""
    done = subprocess.run(
        [PYTHON, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        stdin=subprocess.DEVNULL,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def logits(*arguments: Any) -> list[float]:
    return json.loads(python(LOGITS, *arguments).splitlines()[-1])


def evaluate(model: Path, data: Path, *more: Any) -> dict[str, Any]:
    return json.loads(python(TRAIN, "eval", "--model", model, "--data", data, "--json", *more))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lora", "oft"])
def test_train_eval_generate_merge_and_go_on(tmp_path: Path, rows_file: Path, kind: str) -> None:
    model, run, merged = tmp_path / "model", tmp_path / "run", tmp_path / "merged"
    adapter = run / "adapter"
    sets = [f"--set={text}" for text in ("max_steps=6", "learning_rate=1e-2", "num_generations=1")]
    python(TRAIN, "make-tiny", "--output", model)
    fit = ["--adapter", kind, "--model", model, "--data", rows_file, "--eval-data", rows_file, *sets]
    python(TRAIN, *fit, "--output", run)
    results = json.loads((run / "run.json").read_text(encoding="utf-8"))["results"]

    report = evaluate(model, rows_file, "--adapter", adapter)
    assert report["base"]["loss"] == pytest.approx(results["eval_loss_before"], abs=1e-4)
    assert report["adapted"]["loss"] == pytest.approx(results["eval_loss_after"], abs=1e-4)
    half = evaluate(model, rows_file, "--adapter", adapter, "--precision", "bf16")
    assert half["adapted"]["loss"] == pytest.approx(report["adapted"]["loss"], rel=1e-2)

    ask = ["generate", "--model", model, "--adapter", adapter, "--data", rows_file, "--limit", "1", "--json"]
    answers = json.loads(python(TRAIN, *ask, "--max-new-tokens", "48"))
    assert answers[0]["answer"] == results["generations"][0]["after"]

    python(TRAIN, "merge", "--model", model, "--adapter", adapter, "--output", merged)
    assert logits(merged) == pytest.approx(logits(model, adapter), abs=1e-4)
    assert logits(merged) != pytest.approx(logits(model), abs=1e-2)
    whole = evaluate(merged, rows_file)
    assert whole["base"]["loss"] == pytest.approx(report["adapted"]["loss"], abs=1e-4)

    python(TRAIN, *fit, "--output", tmp_path / "second", "--set", f"init_adapter={adapter}")
    second = json.loads((tmp_path / "second" / "run.json").read_text(encoding="utf-8"))["results"]
    assert second["eval_loss_before"] == pytest.approx(results["eval_loss_after"], abs=1e-4)
    assert second["eval_loss_after"] < second["eval_loss_before"]
    assert f"kind: {kind}" in python(TRAIN, "info", tmp_path / "second")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lora", "oft"])
def test_an_adapter_of_plain_peft_lives_on_with_us(tmp_path: Path, rows_file: Path, kind: str) -> None:
    model, foreign, merged = tmp_path / "model", tmp_path / "foreign", tmp_path / "merged"
    python(TRAIN, "make-tiny", "--output", model)
    python(WRITE, model, foreign, kind)
    out = python(TRAIN, "eval", "--model", model, "--adapter", foreign, "--data", rows_file)
    assert "has no isotune.json" in out
    python(TRAIN, "merge", "--model", model, "--adapter", foreign, "--output", merged)
    assert logits(merged) == pytest.approx(logits(model, foreign), abs=1e-4)
    python(
        TRAIN, "--adapter", kind, "--model", model, "--data", rows_file, "--output", tmp_path / "run",
        "--set", f"init_adapter={foreign}", "--set", "max_steps=2", "--set", "num_generations=0",
    )  # fmt: skip
    written = json.loads((tmp_path / "run" / "adapter" / "isotune.json").read_text(encoding="utf-8"))
    assert written["parametrisation"]["target_modules"] == ["down_proj", "q_proj"]
