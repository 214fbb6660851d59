"""Evaluation while a model trains: it changes nothing, is exact after a stop, and chooses the best step."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.train.loop.conftest import cut_back, exact, go, read, rewrite
from tests.train.loop.test_stop import send_at, stopped
from train.config import RunConfig
from train.errors import EXIT_CONFIG, EXIT_TRAINING, UserError
from train.loop.checkpoint import Checkpoint
from train.loop.evaluation import Evaluator
from train.loop.metrics import EvaluationMetrics, MetricsFile, StepMetrics
from train.loop.trainer import RunTrainer


def metrics(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]


def steps(folder: Path, kind: str) -> list[int]:
    return [line["step"] for line in metrics(folder) if kind in line]


@pytest.fixture
def dropped(recipe: dict[str, Any], few_rows: Path, without_drawing: None) -> dict[str, Any]:
    """Dropout, and two evaluation sets."""
    sets = {"same": recipe["data"], "few": few_rows}
    return recipe | {"lora": {"lora_dropout": 0.2}, "eval_data": sets, "logging_steps": 3, "eval_steps": 2}


def test_several_sets_are_evaluated_by_name_and_training_does_not_notice(
    dropped: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The labels of a model under PEFT's wrapper are found too: there is a loss to go by."""
    results = go(dropped, output=tmp_path / "with", keep_best=True, best_by="few").results
    said = capsys.readouterr().out
    without = dropped | {"eval_data": None, "eval_steps": "epoch", "output": tmp_path / "without"}
    go({name: value for name, value in without.items() if name != "eval_steps"}, logging_steps=2)
    assert steps(tmp_path / "with", "loss") == [1, 2, 3, 4]
    assert steps(tmp_path / "with", "eval_loss") == [2, 4]
    weights = [
        (tmp_path / name / "checkpoints" / "step-4" / "adapter_model.safetensors").read_bytes()
        for name in ("with", "without")
    ]
    assert weights[0] == weights[1]
    lines = [line["eval_loss"] for line in metrics(tmp_path / "with") if "eval_loss" in line]
    assert all(list(losses) == ["same", "few"] and losses["same"] != losses["few"] for losses in lines)
    assert results["eval_losses"]["few"]["after"] == results["eval_loss_after"] == lines[-1]["few"]
    assert results["eval_losses"]["same"]["before"] > lines[0]["same"] > lines[1]["same"]
    assert (results["best_step"], results["best_eval_loss"]) == (4, lines[-1]["few"])
    assert f"eval loss after step 2: same {lines[0]['same']:.4f}  few {lines[0]['few']:.4f}" in said
    written = read(tmp_path / "with" / "run.json")
    assert written["plan"]["samples_per_step"] == 4
    assert len(written["data"]) == 3


def test_a_signal_while_evaluating_saves_a_checkpoint_and_the_evaluation_comes_after_all(
    dropped: dict[str, Any],
    tmp_path: Path,
    signals: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It comes between the two sets; the process that goes on is killed before its next checkpoint."""
    go(dropped, output=tmp_path / "whole")
    send_at(monkeypatch, "evaluation_loss", 4, lambda: signals(signal.SIGTERM))
    stop = stopped(dropped)
    monkeypatch.undo()
    assert stop.checkpoint == dropped["output"] / "checkpoints" / "step-2"
    assert steps(dropped["output"], "eval_loss") == []
    step = dropped["output"] / "checkpoints" / "step-2" / "checkpoint.json"
    assert read(step)["evaluation"]["evaluated_step"] == 0

    def broken(*_: Any) -> None:
        raise UserError("no more")

    monkeypatch.setattr(RunTrainer, "train_to_the_end", broken)
    with pytest.raises(UserError, match="no more"):
        go(dropped)
    monkeypatch.undo()
    assert steps(dropped["output"], "eval_loss") == [2]
    go(dropped)
    assert exact(dropped["output"]) == exact(tmp_path / "whole")


@pytest.fixture
def scripted(
    recipe: dict[str, Any], without_drawing: None, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """Evaluation losses by step: the best at step 2, and worse from there on."""
    losses = [9.0, 3.0, 2.0, 4.0, 5.0, 1.0, 1.0]

    def loss(self: Any, name: str) -> float:
        trained = self.callback.metrics.steps
        return losses[trained[-1].step if trained else 0]

    monkeypatch.setattr(RunTrainer, "evaluation_loss", loss)
    return recipe | {
        "eval_data": recipe["data"],
        "eval_steps": 1,
        "keep_best": True,
        "early_stopping_patience": 2,
        "max_steps": 6,
        "save_total_limit": 1,
    }


def test_a_plateau_stops_the_run_and_the_best_adapter_is_the_result(
    scripted: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = go(scripted, output=tmp_path / "whole").results
    said = capsys.readouterr().out
    assert (results["num_steps"], results["best_step"], results["best_eval_loss"]) == (4, 2, 2.0)
    assert results["is_stopped_early"]
    assert "early stopping: 2 evaluations in a row" in said
    assert "keep_best: the result is the adapter of step 2, eval loss 2.0000" in said
    kept = tmp_path / "whole" / "checkpoints"
    assert sorted(path.name for path in kept.iterdir()) == ["step-2", "step-4"]
    adapter = (tmp_path / "whole" / "adapter" / "adapter_model.safetensors").read_bytes()
    best, last = ((kept / name / "adapter_model.safetensors").read_bytes() for name in ("step-2", "step-4"))
    assert adapter == best != last

    folder = cut_back(tmp_path / "whole", scripted["output"], 4)
    go(scripted)
    assert exact(folder) == exact(tmp_path / "whole"), "killed after it had stopped: no step more"
    back = cut_back(tmp_path / "whole", tmp_path / "back", 2)
    go(scripted, output=back)
    assert exact(back) == exact(tmp_path / "whole"), "killed after the best step"


def test_an_evaluation_loss_that_is_no_number_stops_the_run(
    scripted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunTrainer, "evaluation_loss", lambda self, name: float("nan"))
    with pytest.raises(UserError, match="step 1: eval loss of eval is nan") as caught:
        go(scripted)
    assert caught.value.exit_code == EXIT_TRAINING


def evaluator(tmp_path: Path, start: Checkpoint | None = None, **fields: Any) -> Evaluator:
    given = {"adapter": "lora", "model": "m", "data": "d", "output": tmp_path, "eval_data": "e"}
    return Evaluator(RunConfig.model_validate(given | fields), MetricsFile(tmp_path / "m.jsonl"), start)


@pytest.mark.parametrize(
    ("fields", "losses", "best", "stops_at"),
    [
        ({}, [3, 2, 1], 3, None),
        ({}, [1, 2, 3, 4, 5], 1, None),
        ({"early_stopping_patience": 1}, [3, 2, 2], 2, 3),
        ({"early_stopping_patience": 2}, [3, 4, 2, 3, 1], 5, None),
        ({"early_stopping_patience": 2}, [3, 4, 5, 1], 1, 3),
        # Lower, but by too little: the best of them is kept all the same.
        ({"early_stopping_patience": 2, "early_stopping_threshold": 0.5}, [3, 2.8, 2.6], 3, 3),
        ({"early_stopping_patience": 2, "early_stopping_threshold": 0.5}, [3, 2.8, 2.2, 2.1], 4, None),
    ],
)
def test_patience_counts_evaluations_without_a_real_improvement(
    tmp_path: Path, fields: dict[str, Any], losses: list[float], best: int, stops_at: int | None
) -> None:
    judge = evaluator(tmp_path, **fields)
    stopped_at = None
    for step, loss in enumerate(losses, 1):
        judge.judge(step, {"eval": loss})
        if judge.standing.is_stopped:
            stopped_at = step
            break
    assert (judge.standing.best_step, stopped_at) == (best, stops_at)


def test_the_named_set_decides_else_the_first(tmp_path: Path) -> None:
    sets = {"a": "x", "b": "y"}
    for fields, best in (({}, 2), ({"best_by": "b"}, 1)):
        judge = evaluator(tmp_path, eval_data=sets, keep_best=True, **fields)
        judge.judge(1, {"a": 2.0, "b": 1.0})
        judge.judge(2, {"a": 1.0, "b": 2.0})
        assert judge.kept_step == best


@pytest.mark.parametrize(
    ("every", "step", "epoch", "is_due"),
    [
        (5, 5, 0.5, True),
        (5, 6, 1.0, False),
        (5, 8, 2.0, True),
        ("epoch", 4, 1.0, True),
        ("epoch", 5, 1.25, False),
        ("epoch", 8, 1.5, True),
    ],
)
def test_an_evaluation_is_due_by_steps_or_epochs_and_after_the_last_step(
    tmp_path: Path, every: int | str, step: int, epoch: float, is_due: bool
) -> None:
    assert evaluator(tmp_path, eval_steps=every).is_due(step, epoch, 8) == is_due
    assert not evaluator(tmp_path, eval_data=None).is_due(step, epoch, 8)


def test_a_best_adapter_that_is_gone_is_told_before_a_step_is_trained(
    scripted: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    standing = {"evaluated_step": 4, "best_step": 2, "best_loss": 2.0, "without_improvement": 1}
    content = {"step": 4, "evaluation": standing}
    start = Checkpoint(tmp_path / "checkpoints" / "step-4", content)
    with pytest.raises(UserError, match="step-2: holds the best adapter so far") as caught:
        evaluator(tmp_path, start, keep_best=True)
    assert caught.value.exit_code == EXIT_CONFIG
    assert "resume=weights-only" in caught.value.hint
    weights_only = Checkpoint(start.folder, content, is_weights_only=True)
    assert evaluator(tmp_path, weights_only, keep_best=True).standing.best_loss is None
    assert "the best is sought among the steps from here on" in capsys.readouterr().out
    shutil.rmtree(tmp_path / "checkpoints", ignore_errors=True)


def test_lines_of_evaluations_are_read_back_and_lost_ones_are_told(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines: list[Any] = [
        StepMetrics(1, 0.5, 3.0, 1e-3, 1.0, 10, 5, 0.1, 9),
        EvaluationMetrics(1, 0.5, {"a": 1.0, "b": 2.0}, 0.2),
        StepMetrics(2, 1.0, 2.0, 1e-3, 1.0, 10, 5, 0.3, 9),
        EvaluationMetrics(2, 1.0, {"a": 1.0, "b": 2.0}, 0.4),
    ]
    file = MetricsFile(path)
    for line in lines:
        file.write(line)
    text = path.read_text("utf-8")
    for last_step, num_lines, kept in ((2, 4, 4), (2, 3, 3), (1, 1, 1), (1, 2, 2)):
        path.write_text(text, encoding="utf-8")
        assert MetricsFile(path, last_step, num_lines).lines == lines[:kept]
    for last_step, num_lines in ((2, 5), (2, 2), (1, 3)):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match="lines up to step"):
            MetricsFile(path, last_step, num_lines)


def test_an_unfinished_run_may_not_change_its_sets_but_their_places(
    recipe: dict[str, Any], unfinished: Path, tmp_path: Path
) -> None:
    from train.loop.claim import differences

    written = read(unfinished / "run.json")["recipe"]

    def config(**fields: Any) -> RunConfig:
        return RunConfig.model_validate({**recipe, **fields})

    sets = {"a": "x", "b": "y"}
    rewrite(unfinished / "run.json", recipe=written | {"eval_data": sets})
    assert differences(written | {"eval_data": sets}, config(eval_data={"a": "z", "b": "y"})) == []
    assert differences(written | {"eval_data": sets}, config(eval_data={"a": "x"})) != []
    assert differences(written, config(tensorboard=True)) == []
    assert differences(written, config(weight_decay=0.5)) == ["weight_decay: 0.0 there, 0.5 here"]
