"""Out of memory: told with what would fit, or given way to with the same steps and the same result."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.loop.conftest import cut_back, exact, finding_lines, go, read, step_lines
from train.errors import EXIT_TRAINING, UserError
from train.loop.memory import is_out_of_memory
from train.loop.trainer import RunTrainer

pytestmark = pytest.mark.usefixtures("without_drawing")

Limit = Callable[..., list[int]]


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Limit:
    """A device that has room for forwards of so many tokens; returns the sizes of those that were tried.

    from_step: it is a smaller one from there on. fails_in: forward, or the middle of backward.
    relieved: gradient checkpointing makes everything fit. phase: training, evaluation, or both.
    """

    def put(
        num_tokens: int,
        from_step: int = 1,
        fails_in: str = "forward",
        relieved: bool = False,
        phase: str = "",
    ) -> list[int]:
        asked: list[int] = []
        original = RunTrainer._loss

        def compute(self: RunTrainer, model: Any, inputs: dict[str, Any]) -> Any:
            size = inputs["input_ids"].numel()
            asked.append(size)
            is_training = torch.is_grad_enabled()
            full = size > num_tokens and self.state.global_step + 1 >= from_step
            if relieved and self.model.is_gradient_checkpointing:  # type: ignore[union-attr]
                full = False
            if phase and phase != ("training" if is_training else "evaluation"):
                full = False
            with_hook = None
            if full:
                layer = self.model.get_submodule("base_model.model.model.layers.0.mlp")
                with_hook = layer.register_forward_hook(overflow(fails_in))
            try:
                return original(self, model, inputs)
            finally:
                if with_hook:
                    with_hook.remove()

        monkeypatch.setattr(RunTrainer, "_loss", compute)
        return asked

    return put


def overflow(fails_in: str) -> Callable[..., Any]:
    def fail(*_: Any) -> None:
        raise torch.OutOfMemoryError("Tried to allocate 2.00 GiB. The device has 16 MiB free.")

    def hook(module: Any, inputs: Any, output: torch.Tensor) -> None:
        if fails_in == "forward":
            fail()
        output.register_hook(fail)  # the last layer's gradients are added already

    return hook


@pytest.fixture
def short(recipe: dict[str, Any], few_rows: Path) -> dict[str, Any]:
    """Two steps of two batches of two short rows in each epoch."""
    eight = recipe["data"].parent / "eight.jsonl"
    lines = sorted(recipe["data"].read_text("utf-8").splitlines(), key=len)[:8]
    eight.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return recipe | {
        "data": eight,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "max_steps": 3,
    }


def test_what_is_out_of_memory_and_what_is_not() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**50, dtype=torch.uint8)  # the words of torch's own allocator
    assert is_out_of_memory(caught.value)
    assert is_out_of_memory(torch.OutOfMemoryError("any words"))
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("NPU out of memory. Tried to allocate 2.00 GiB"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_running_out_of_memory_tells_what_would_fit_and_keeps_the_last_step(
    short: dict[str, Any], limit: Limit, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = limit(10, from_step=2, relieved=True)
    with pytest.raises(UserError) as caught:
        go(short)
    fault = caught.value
    assert fault.exit_code == EXIT_TRAINING
    assert fault.message.startswith("out of memory in training, after step 1: Tried to allocate 2.00 GiB.")
    held = rf"the forward held 2 samples, {asked[-1]} tokens, the longest of \d+; peak "
    assert re.search(held, fault.message)
    assert f"the largest that fitted held {max(asked[:2])} tokens" in fault.message
    assert (
        "a new --output with --set per_device_train_batch_size=1 --set gradient_accumulation_steps=4: "
        "the same samples in each step" in fault.hint
    )
    assert "--set auto_batch=true (goes on from step 1)" in fault.hint
    assert "--set gradient_checkpointing=true (goes on from step 1)" in fault.hint
    assert read(short["output"] / "run.json")["status"] == "failed"
    # As the hint says, on the same device.
    results = go(short, auto_batch=True).results
    assert results["num_steps"] == 3
    assert "resume: goes on after step 1" in capsys.readouterr().out


@pytest.mark.parametrize("fails_in", ["forward", "backward"])
@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_giving_way_changes_no_step(
    short: dict[str, Any], tmp_path: Path, limit: Limit, adapter: str, fails_in: str
) -> None:
    """The failed step is done again whole: nothing is lost, doubled, or weighted otherwise."""
    fields = {**short, "adapter": adapter, "auto_batch": True, "max_grad_norm": 1e6}
    go(fields, output=tmp_path / "whole")
    asked = limit(210, fails_in=fails_in)
    results = go(fields, output=tmp_path / "small").results
    assert max(asked) > 210
    whole, small = step_lines(tmp_path / "whole"), step_lines(tmp_path / "small")
    for name in ("loss", "grad_norm", "num_tokens", "num_target_tokens", "learning_rate"):
        assert [line[name] for line in small] == pytest.approx([line[name] for line in whole], rel=1e-4), name
    change = results["auto_batch"][0]
    assert change["phase"] == "training"
    assert "forwards of at most" in change["change"]
    found = finding_lines(tmp_path / "small")
    assert len(found) == len(results["auto_batch"])  # each change is told
    assert all(one["name"].startswith("out_of_memory_training_") for one in found)
    assert {one["level"] for one in found} == {"warning"}
    assert found[0]["step"] == change["step"]


def test_where_one_sample_does_not_fit_gradient_checkpointing_comes_next(
    short: dict[str, Any], tmp_path: Path, limit: Limit, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {**short, "auto_batch": True, "max_steps": 2}
    go(fields, output=tmp_path / "whole")
    limit(10, relieved=True)
    results = go(fields, output=tmp_path / "small").results
    assert [change["change"].split(" from")[0] for change in results["auto_batch"]][
        -1
    ] == "gradient checkpointing"
    assert len(results["auto_batch"]) > 1
    losses = [[line["loss"] for line in step_lines(tmp_path / name)] for name in ("small", "whole")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    assert capsys.readouterr().out.count("warning: step 1: out of memory in training with 2 samples") == 1


def test_where_nothing_is_left_to_give_the_run_stops(short: dict[str, Any], limit: Limit) -> None:
    limit(10)
    with pytest.raises(UserError) as caught:
        go(short, auto_batch=True)
    assert caught.value.exit_code == EXIT_TRAINING
    assert "the forward held 1 sample, " in caught.value.message
    assert "max_length=" in caught.value.hint
    names = [one["name"] for one in read(short["output"] / "run.json")["results"]["findings"]]
    assert len(names) > 1 and names[-1] == "out_of_memory_training_checkpointing_on"


def test_a_run_that_gave_way_resumes_to_the_last_digit(
    short: dict[str, Any], tmp_path: Path, limit: Limit
) -> None:
    """Dropout draws other numbers for other forwards: the resumed run cuts its batches in the same way."""
    limit(210, from_step=2)
    fields = {
        **short,
        "auto_batch": True,
        "max_steps": 4,
        "lora": {"lora_dropout": 0.1},
        "eval_data": short["data"],
    }
    go(fields, output=tmp_path / "whole", save_steps=1, save_total_limit=9)
    whole = exact(tmp_path / "whole")
    assert whole["results"]["auto_batch"]
    for step in (1, 3):
        folder = cut_back(tmp_path / "whole", tmp_path / f"from-{step}", step)
        go(fields, output=folder)
        assert exact(folder) == whole, f"from step {step}"


def test_an_evaluation_gives_way_too_with_the_same_loss(
    short: dict[str, Any], tmp_path: Path, limit: Limit
) -> None:
    fields = {**short, "auto_batch": True, "max_steps": 1, "eval_data": short["data"]}
    whole = go(fields, output=tmp_path / "whole").results
    limit(210, phase="evaluation")
    small = go(fields, output=tmp_path / "small").results
    for name in ("eval_loss_before", "eval_loss_after"):
        assert small[name] == pytest.approx(whole[name], rel=1e-6)
    assert {change["phase"] for change in small["auto_batch"]} == {"evaluation"}
    with pytest.raises(UserError, match="out of memory in evaluation, after step 0"):
        go(fields, output=tmp_path / "stops", auto_batch=False)


def test_the_optimizers_first_step_may_run_out_of_memory_too(
    short: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def step(self: Any, *_: Any, **__: Any) -> None:
        raise RuntimeError(
            "[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory: 8 bytes"
        )

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    with pytest.raises(
        UserError, match="out of memory in training, after step 0: .*can't allocate"
    ) as caught:
        go(short)
    assert caught.value.exit_code == EXIT_TRAINING
