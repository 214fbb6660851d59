"""Runs broken on purpose, one per symptom: each is told with its cause, and kept where it belongs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.train.loop.broken import Step, kept, stopped
from tests.train.loop.conftest import cut_back, exact, finding_lines, go, read, step_lines
from train.errors import UserError
from train.loop import symptoms
from train.loop.callback import RunCallback
from train.loop.watch import HealthWatch

pytestmark = pytest.mark.usefixtures("without_drawing")


@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_a_run_that_is_well_finds_nothing(short: dict[str, Any], adapter: str) -> None:
    results = go(short, adapter=adapter, max_steps=40, learning_rate=4e-3, logging_steps=1).results
    assert results["findings"] == []
    assert finding_lines(short["output"]) == []
    assert results["last_loss"] < results["first_loss"]


def test_repeated_rows_and_rows_shared_with_the_evaluation_are_counted(
    short: dict[str, Any], write_rows: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = short["data"].read_text("utf-8").splitlines()
    data = write_rows(*rows, rows[0], rows[1], name="repeated.jsonl")
    go(short, data=data, eval_data=short["data"], max_steps=1)
    assert kept(short["output"]) == {"duplicate_rows": "warning", "evaluation_rows_in_training": "warning"}
    said = capsys.readouterr().out
    assert "warning: 2 of 6 training rows (33.3%) repeat an earlier one: " in said
    assert "4 of 4 evaluation rows (100.0%) are training rows too" in said
    assert said.index("warning: 2 of 6") < said.index("step 1/1")


def test_answers_that_are_nothing_beside_their_prompts_are_told(
    short: dict[str, Any], write_rows: Callable[..., Path]
) -> None:
    rows = [{"instruction": "long " * 90 + str(number), "output": "a"} for number in range(4)]
    go(short, data=write_rows(*rows), max_steps=1)
    assert kept(short["output"]) == {"few_target_tokens": "warning", "few_target_tokens_in_step": "note"}


def test_a_run_that_ends_within_its_warmup_is_told(short: dict[str, Any]) -> None:
    go(short, max_steps=2, warmup_steps=10)
    assert kept(short["output"]) == {"all_warmup": "warning"}
    assert "no higher than 10%" in finding_lines(short["output"])[0]["cause"]


def test_a_model_whose_weights_are_wrong_starts_above_uniform(short: dict[str, Any], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = Path(shutil.copytree(short["model"], tmp_path / "wrong"))
    wrong = AutoModelForCausalLM.from_pretrained(model)
    wrong.lm_head.weight.data *= 20
    wrong.save_pretrained(model)
    go(short, model=model, max_steps=1)
    assert kept(short["output"]) == {"first_loss_above_uniform": "warning"}


def test_weights_in_half_precision_are_refused_before_the_first_step(
    short: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.adapters import attach

    original = attach.batched

    def halved(model: Any) -> Any:
        original(model)
        next(iter(attach.trainable(model).values())).data = torch.zeros(32, 256, dtype=torch.float16)
        return model

    monkeypatch.setattr(attach, "batched", halved)
    fault = stopped(short)
    assert "1 of 28 trained tensors are not fp32" in fault.message
    assert "lora_A" in fault.message
    assert "(float16)" in fault.message
    assert step_lines(short["output"]) == []


def test_a_tensor_that_the_optimizer_does_not_know_is_named_before_the_first_step(
    short: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.loop.trainer import RunTrainer

    original = RunTrainer.create_optimizer

    def without_one(self: Any, *rest: Any) -> Any:
        optimizer = original(self, *rest)
        self.optimizer.param_groups[0]["params"].pop()
        return optimizer

    monkeypatch.setattr(RunTrainer, "create_optimizer", without_one)
    assert "1 of 28 trained tensors are not in the optimizer" in stopped(short).message


def test_a_step_without_a_target_token_is_an_error_and_never_a_loss_of_zero(
    short: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.loop import packed, trainer

    def masked(*rest: Any, **named: Any) -> Any:
        batch = packed.batch_of(*rest, **named)
        return batch | {"labels": torch.full_like(batch["labels"], -100), "num_target_tokens": 0}

    monkeypatch.setattr(trainer, "batch_of", masked)
    fault = stopped(short)
    assert fault.message.startswith("step 1: 0 target tokens in this step\nin the batch of\n")
    assert f"{short['data']}:1" in fault.message
    assert step_lines(short["output"]) == []


def scale_gradients(by: Callable[[int], float]) -> Step:
    """Multiply all gradients at each step."""
    factor = [1.0]
    hooked: list[RunCallback] = []

    def act(callback: RunCallback, step: int) -> None:
        if callback not in hooked:
            hooked.append(callback)
            for parameter in callback.gradients.parameters.values():
                parameter.register_hook(lambda gradient: gradient * factor[0])
        factor[0] = by(step)

    return act


def test_gradients_that_vanish_are_a_warning_and_then_a_stop(
    short: dict[str, Any], at_each_step: Callable[[Step], None]
) -> None:
    at_each_step(scale_gradients(lambda step: 1.0 if step < 3 else 0.0))
    fault = stopped(short, max_steps=30, lr_scheduler_type="constant")
    assert fault.message == "step 12: the grad norm is 0 for 10 lines of metrics"
    first = read(short["output"] / "run.json")["results"]["findings"][0]
    assert (first["level"], first["step"], first["times"], first["last_step"]) == ("warning", 5, 7, 11)


def test_gradients_that_explode_are_told(
    short: dict[str, Any], at_each_step: Callable[[Step], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(symptoms, "MEDIAN_LEAST", 3)
    at_each_step(scale_gradients(lambda step: 1.0 if step < 7 else 1000.0))
    go(short, max_steps=9, max_grad_norm=1e6)
    assert kept(short["output"])["exploding_gradients"] == "warning"
    assert kept(short["output"])["gradient_spike"] == "note"


def test_a_loss_that_jumps_is_told(
    short: dict[str, Any], at_each_step: Callable[[Step], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ruin(callback: RunCallback, step: int) -> None:
        if step == 6:
            callback.trainer.model.get_output_embeddings().weight.data.mul_(15)

    monkeypatch.setattr(symptoms, "JUMP_BEFORE", 4)
    monkeypatch.setattr(symptoms, "JUMP_LINES", 2)
    at_each_step(ruin)
    go(short, max_steps=7)
    assert kept(short["output"])["loss_jump"] == "warning"
    assert next(one for one in finding_lines(short["output"]) if one["name"] == "loss_jump")["step"] == 6


def test_a_run_that_diverges_is_told(
    short: dict[str, Any], at_each_step: Callable[[Step], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_away(callback: RunCallback, step: int) -> None:
        if step >= 4:
            callback.trainer.model.get_output_embeddings().weight.data.mul_(3)

    monkeypatch.setattr(symptoms, "ABOVE_START_LINES", 3)
    at_each_step(run_away)
    go(short, max_steps=7)
    assert kept(short["output"])["loss_above_start"] == "warning"


def test_a_run_that_learns_nothing_is_stuck(short: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symptoms, "STUCK_STEPS", 8)
    monkeypatch.setattr(symptoms, "WINDOW_LINES", 4)
    go(short, max_steps=8, learning_rate=1e-9)
    assert kept(short["output"]) == {"stuck_at_uniform": "warning"}


def test_a_learning_rate_of_zero_throughout_is_told_before_the_run_ends(
    short: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.loop.trainer import RunTrainer

    def zero(self: Any, num_training_steps: int, optimizer: Any = None) -> Any:
        self.lr_scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer or self.optimizer, lambda _: 0.0)
        return self.lr_scheduler

    monkeypatch.setattr(RunTrainer, "create_scheduler", zero)
    with pytest.raises(UserError, match="no tensor changed"):
        go(short, max_steps=6)
    assert kept(short["output"]) == {"zero_learning_rate": "warning"}


def test_an_evaluation_that_rises_while_training_falls_is_told(
    short: dict[str, Any], write_rows: Callable[..., Path]
) -> None:
    def rows(*words: str) -> list[dict[str, str]]:
        return [{"instruction": "Say it.", "output": word * 12} for word in words]

    data = write_rows(*rows("17", "71", "117", "177"), name="train.jsonl")
    other = write_rows(*rows("XQ", "ZXQ", "QZ", "ZQ"), name="eval.jsonl")
    go(short, data=data, eval_data=other, max_steps=12, learning_rate=1e-2)
    assert kept(short["output"]) == {"evaluation_rises": "warning"}
    assert "above its lowest" in finding_lines(short["output"])[0]["seen"]


def test_findings_of_a_resumed_run_are_those_of_an_uninterrupted_one(
    short: dict[str, Any],
    tmp_path: Path,
    write_rows: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Some before the first step, one at each line, and one that begins between two checkpoints."""
    monkeypatch.setattr(symptoms, "STUCK_STEPS", 5)
    monkeypatch.setattr(symptoms, "WINDOW_LINES", 2)
    rows = [{"instruction": "Say it.", "output": letter} for letter in "abca"]
    data = write_rows(*rows, name="repeated.jsonl")
    fields = short | {"data": data, "eval_data": data, "max_steps": 6, "learning_rate": 1e-9}
    fields["per_device_train_batch_size"] = 1
    go(fields, output=tmp_path / "whole", save_steps=2, save_total_limit=9)
    whole = exact(tmp_path / "whole")
    found = {one["name"]: one for one in whole["results"]["findings"]}
    assert len(found) == 4
    assert found["duplicate_rows"]["times"] == 1
    assert found["few_target_tokens_in_step"]["times"] == 6
    assert (found["stuck_at_uniform"]["step"], found["stuck_at_uniform"]["times"]) == (5, 2)
    for step in (4, 6):
        folder = cut_back(tmp_path / "whole", tmp_path / f"from-{step}", step)
        go(fields, output=folder)
        assert exact(folder) == whole, f"from step {step}"


@pytest.mark.parametrize("every", [1, 2, 5, 10])
def test_a_rising_evaluation_is_told_however_few_lines_there_are(every: int) -> None:
    """Evaluations every 20 steps, the best at 20; the training loss falls all the while."""
    watch = HealthWatch.__new__(HealthWatch)
    told: list[Any] = []
    watch.lines, watch.evaluations = [], {}
    watch.findings = SimpleNamespace(add=told.append)  # type: ignore[assignment]
    for step in range(1, 61):
        if step % every == 0:
            watch.lines.append(SimpleNamespace(step=step, loss=5 - step / 20))  # type: ignore[arg-type]
        if step % 20 == 0:
            watch.evaluated(step, "code", {20: 2.0, 40: 2.5, 60: 3.0}[step])
            assert len(told) == (step - 20) // 20
    assert {finding.name for finding in told} == {"evaluation_rises_code"}
