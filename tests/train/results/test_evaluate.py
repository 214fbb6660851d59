"""Scores are per target token, of base and adapter alike, and those that a run gives."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from train.adapters.saved import load_adapter
from train.config import RunConfig
from train.data.samples import Policies, load_samples
from train.data.template import IGNORED, ChatTemplate
from train.errors import EXIT_CONFIG, EXIT_DATA, EXIT_TRAINING, UserError
from train.loop.model import load_model, load_tokenizer
from train.results.evaluate import evaluate, score, table
from train.results.opened import ModelOptions

Adapters = Callable[..., Path]
KINDS = pytest.mark.parametrize("kind", ["lora", "oft"])


def of(model: Path, data: Path, adapter: Path | None = None, batch_size: int = 4, **more: Any) -> Any:
    options = ModelOptions(model, adapter, device="cpu", **more)
    return evaluate(options, data, batch_size, 2048, sys.stderr)


def by_hand(model: Any, tiny: Path, data: Path) -> tuple[float, float]:
    """Loss and accuracy from whole logits, one sample at a time."""
    samples = load_samples(data, ChatTemplate(load_tokenizer(tiny)), Policies(2048, "drop")).samples
    loss, hits, count = 0.0, 0, 0
    for sample in samples:
        ids = torch.tensor([sample.input_ids])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
        for position, label in enumerate(sample.labels[1:]):
            if label != IGNORED:
                loss -= logits[position, label].item()
                hits += int(logits[position].argmax()) == label
                count += 1
    return loss / count, hits / count


@KINDS
def test_base_and_adapter_are_scored_as_by_hand(
    adapter_of: Adapters, tiny: Path, few_rows: Path, kind: str
) -> None:
    report = of(tiny, few_rows, adapter_of(kind), batch_size=3)
    base = load_model(tiny, torch.float32, "sdpa").eval()
    assert (report["base"]["loss"], report["base"]["token_accuracy"]) == pytest.approx(
        by_hand(base, tiny, few_rows), rel=1e-5
    )
    adapted = load_adapter(base, adapter_of(kind), trainable=False)
    assert (report["adapted"]["loss"], report["adapted"]["token_accuracy"]) == pytest.approx(
        by_hand(adapted, tiny, few_rows), rel=1e-5
    )
    assert report["adapted"]["perplexity"] == pytest.approx(math.exp(report["adapted"]["loss"]))
    assert abs(report["adapted"]["loss"] - report["base"]["loss"]) > 1e-3
    assert report["num_samples"] == 4
    assert report["num_target_tokens"] == report["data"]["num_target_tokens"] > 50


def test_no_batch_size_changes_a_score(tiny: Path, rows_file: Path) -> None:
    scores = [of(tiny, rows_file, batch_size=size)["base"]["loss"] for size in (1, 3, 64)]
    assert scores == pytest.approx([scores[0]] * 3, abs=1e-6)


def test_without_an_adapter_there_is_the_base_alone(tiny: Path, few_rows: Path) -> None:
    report = of(tiny, few_rows)
    assert report["adapted"] is None
    assert table(report)[1].split() == ["base"]


def test_the_table_has_both_side_by_side(adapter_of: Adapters, tiny: Path, few_rows: Path) -> None:
    report = of(tiny, few_rows, adapter_of("oft"))
    lines = table(report)
    assert lines[1].split() == ["base", "adapter"]
    assert lines[2].split()[-2:] == [f"{report['base']['loss']:.4f}", f"{report['adapted']['loss']:.4f}"]


@KINDS
def test_a_run_and_eval_say_the_same(recipe: dict[str, Any], few_rows: Path, kind: str) -> None:
    from train.loop.run import run

    fields = {"adapter": kind, "data": few_rows, "eval_data": few_rows, "max_steps": 2}
    results = run(RunConfig.model_validate({**recipe, **fields})).results
    report = of(recipe["model"], few_rows, recipe["output"] / "adapter")
    assert report["base"]["loss"] == pytest.approx(results["eval_loss_before"], abs=1e-5)
    assert report["adapted"]["loss"] == pytest.approx(results["eval_loss_after"], abs=1e-5)


def test_bf16_and_fp16_score_nearly_the_same(adapter_of: Adapters, tiny: Path, few_rows: Path) -> None:
    scores = [
        of(tiny, few_rows, adapter_of("oft"), precision=precision) for precision in ("fp32", "bf16", "fp16")
    ]
    assert [report["adapted"]["loss"] for report in scores] == pytest.approx(
        [scores[0]["adapted"]["loss"]] * 3, rel=5e-3
    )
    assert scores[1]["adapted"]["loss"] != scores[0]["adapted"]["loss"]


def test_a_loss_that_is_not_finite_is_an_error(tiny: Path, rows_file: Path) -> None:
    model = load_model(tiny, torch.float32, "sdpa").eval()
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.nan)
    samples = load_samples(rows_file, ChatTemplate(load_tokenizer(tiny)), Policies(2048, "drop")).samples
    with pytest.raises(UserError, match="loss is nan") as caught:
        score(model, samples, 0, 4)
    assert caught.value.exit_code == EXIT_TRAINING


def test_a_wrong_model_and_a_wrong_adapter_are_said_at_once(tmp_path: Path, rows_file: Path) -> None:
    with pytest.raises(UserError) as caught:
        of(tmp_path / "none", rows_file, Path("lora"))
    assert [line.split(":")[0] for line in caught.value.message.splitlines()] == [
        f"--model {tmp_path / 'none'}",
        "--adapter lora",
    ]
    assert caught.value.exit_code == EXIT_CONFIG


def test_bad_rows_stop_before_weights_are_read(
    tiny: Path, write_rows: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.results import opened

    monkeypatch.setattr(opened, "load_model", lambda *_: pytest.fail("the model was loaded"))
    with pytest.raises(UserError) as caught:
        of(tiny, write_rows({"instruction": "a", "output": 1}))
    assert caught.value.exit_code == EXIT_DATA
