"""A signal ends a run where nothing is half done; a kill costs the steps since the last checkpoint."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.train.loop.conftest import exact, go, read
from train.errors import EXIT_STOPPED
from train.loop.trainer import RunTrainer
from train.stop import REQUEST, Stopped

Signals = Callable[[int], None]


def send_at(monkeypatch: pytest.MonkeyPatch, method: str, count: int, send: Callable[[], Any]) -> None:
    """Call `send` once, inside the trainer's `method`, at its call number `count`."""
    original = getattr(RunTrainer, method)
    calls = []

    def counted(self: Any, *rest: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == count:
            send()
        return original(self, *rest, **named)

    monkeypatch.setattr(RunTrainer, method, counted)


def stopped(recipe: dict[str, Any], **fields: Any) -> Stopped:
    """Run until the signal; the next run is that of another process, which got none."""
    with pytest.raises(Stopped) as caught:
        go(recipe, **fields)
    REQUEST.number = None
    return caught.value


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_inside_a_step_ends_the_run_after_it_with_a_checkpoint(
    recipe: dict[str, Any],
    whole: Path,
    without_drawing: None,
    signals: Signals,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    send_at(monkeypatch, "training_step", 3, lambda: signals(number))
    stop = stopped(recipe)
    monkeypatch.undo()
    assert stop.number == number
    assert stop.checkpoint == recipe["output"] / "checkpoints" / "step-3"
    assert read(recipe["output"] / "run.json")["status"] == "stopped"
    go(recipe)
    assert exact(recipe["output"]) == exact(whole)


def test_a_signal_between_the_batches_of_a_step_does_not_wait_for_the_step(
    recipe: dict[str, Any],
    tmp_path: Path,
    without_drawing: None,
    signals: Signals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The step that was begun is taken again from its start, with the same dropout."""
    fields = recipe | {
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 4,
        "lora": {"lora_dropout": 0.1},
        "logging_steps": 2,
        "max_steps": 3,
    }
    go(fields, output=tmp_path / "whole")
    send_at(monkeypatch, "training_step", 6, lambda: signals(signal.SIGTERM))
    batches: list[int] = []
    send_at(monkeypatch, "training_step", 7, lambda: batches.append(7))
    stop = stopped(fields)
    monkeypatch.undo()
    assert batches == []
    assert stop.checkpoint is not None
    assert stop.checkpoint.name == "step-1"
    go(fields)
    assert exact(recipe["output"]) == exact(tmp_path / "whole")


def test_a_second_signal_while_saving_breaks_no_checkpoint(
    recipe: dict[str, Any], without_drawing: None, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.loop import checkpoint

    def two() -> None:
        signals(signal.SIGTERM)
        signals(signal.SIGINT)

    send_at(monkeypatch, "save_state", 1, two)
    stopped(recipe, save_steps=2)
    folder = recipe["output"] / "checkpoints"
    assert [path.name for path in folder.iterdir()] == ["step-2"]
    assert checkpoint.faults(folder / "step-2") == {}


def test_a_signal_in_the_last_step_leaves_the_rest_to_the_next_start(
    recipe: dict[str, Any],
    whole: Path,
    without_drawing: None,
    signals: Signals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    send_at(monkeypatch, "training_step", 4, lambda: signals(signal.SIGTERM))
    stopped(recipe)
    assert not (recipe["output"] / "adapter").exists()
    monkeypatch.undo()
    go(recipe)
    assert exact(recipe["output"]) == exact(whole)


def test_a_signal_after_training_ends_the_run_at_once_and_the_checkpoint_serves(
    recipe: dict[str, Any],
    without_drawing: None,
    signals: Signals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second evaluation is the one after training."""
    send_at(monkeypatch, "evaluation_loss", 2, lambda: signals(signal.SIGTERM))
    stop = stopped(recipe, eval_data=recipe["data"], max_steps=2, resume="never")
    assert stop.hint == "the same command goes on from there with --set resume=auto"
    assert stop.checkpoint == recipe["output"] / "checkpoints" / "step-2"
    assert read(recipe["output"] / "run.json")["status"] == "stopped"


@pytest.mark.parametrize(("method", "count"), [("evaluation_loss", 1), ("training_step", 2)])
def test_a_signal_before_the_first_step_is_done_leaves_no_checkpoint_and_says_so(
    recipe: dict[str, Any], signals: Signals, monkeypatch: pytest.MonkeyPatch, method: str, count: int
) -> None:
    send_at(monkeypatch, method, count, lambda: signals(signal.SIGTERM))
    stop = stopped(recipe, eval_data=recipe["data"], gradient_accumulation_steps=3)
    assert stop.checkpoint is None
    assert not (recipe["output"] / "checkpoints").exists()
    assert read(recipe["output"] / "run.json")["status"] == "failed"


def test_a_signal_while_data_is_read_ends_the_run_at_once(
    recipe: dict[str, Any], signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.loop import prepare

    original = prepare.load_samples

    def reading(*rest: Any) -> Any:
        signals(signal.SIGTERM)
        return original(*rest)

    monkeypatch.setattr(prepare, "load_samples", reading)
    stop = stopped(recipe)
    assert stop.checkpoint is None


def command(recipe: dict[str, Any], *sets: str) -> list[str]:
    pairs = [("--adapter", "lora"), *((f"--{name}", recipe[name]) for name in ("model", "data", "output"))]
    pairs += [("--set", text) for text in ("device=cpu", "num_generations=0", *sets)]
    script = "from train.cli import main; main()"
    return [sys.executable, "-c", script, *(str(part) for pair in pairs for part in pair)]


def start(recipe: dict[str, Any], *sets: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(recipe, *sets),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_the_command_stops_with_exit_75_and_says_how_to_go_on_while_large_weights_are_hashed(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    import shutil

    model = Path(shutil.copytree(recipe["model"], tmp_path / "model"))
    (model / "large.dat").touch()
    os.truncate(model / "large.dat", 1 << 40)  # sparse: a terabyte that no stop waits for
    process = start(recipe | {"model": model}, "max_steps=1000")
    assert process.stdout is not None
    assert any(line.startswith("step 2/") for line in process.stdout), process.communicate()
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == EXIT_STOPPED, errors
    lines = errors.splitlines()
    assert lines[0] == "SIGTERM: the run stops after this batch and saves a checkpoint"
    assert lines[1].startswith(f"error: stopped by SIGTERM; {recipe['output']}/checkpoints/step-")
    assert lines[2:] == ["hint: the same command goes on from there"]
    assert read(recipe["output"] / "run.json")["status"] == "stopped"


@pytest.mark.slow
def test_a_run_that_is_killed_at_random_moments_ends_as_if_it_never_was(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    """`kill -9`, before and after a start's first step: no step is lost or counted twice."""
    seed = int(os.environ.get("KILL_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"KILL_SEED={seed}")
    chance = random.Random(seed)
    sets = ("max_steps=96", "save_steps=1", "learning_rate=1e-3", "lora.lora_dropout=0.1",
            "per_device_train_batch_size=1", "gradient_accumulation_steps=2")  # fmt: skip
    began = time.monotonic()
    process = start({**recipe, "output": tmp_path / "whole"}, *sets)
    assert process.stdout is not None
    assert any(line.startswith("step 1/") for line in process.stdout)
    to_first_step = time.monotonic() - began
    process.communicate(timeout=900)
    for _ in range(20):
        process = start(recipe, *sets)
        assert process.stdout is not None
        num_steps = chance.randrange(5)
        lines = (line.split("/")[0] for line in process.stdout if line.startswith("step "))
        seen = [step for _, step in zip(range(num_steps), lines, strict=False)]
        time.sleep(chance.uniform(0.0, 0.3 if num_steps else 0.5 * to_first_step))
        process.kill()
        process.communicate()
        print(f"killed {'after ' + ', '.join(seen) if seen else 'before a step'}")
    _, errors = start(recipe, *sets).communicate(timeout=300)
    assert errors == ""
    assert exact(recipe["output"]) == exact(tmp_path / "whole")
    assert read(recipe["output"] / "run.json")["resumed"], "no kill came after a checkpoint"
