"""Unfinished runs: one real run, cut back to what a killed or stopped one leaves."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from train.stop import REQUEST, listen


def go(recipe: dict[str, Any], **fields: Any) -> Any:
    from train.config import RunConfig
    from train.loop.run import run

    return run(RunConfig.model_validate({**recipe, **fields}))


@pytest.fixture
def without_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The curve takes as long as four steps."""
    from train.loop import run

    monkeypatch.setattr(run, "draw_loss", lambda *_: None)


@pytest.fixture(scope="session")
def whole(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the fixture `recipe`, with checkpoints of steps 2 and 4; not to be written into."""
    from train.checks.tiny import samples_file

    folder = tmp_path_factory.mktemp("whole")
    rows = folder / "rows.jsonl"
    rows.write_text("\n".join(samples_file().read_text("utf-8").split("\n")[:16]) + "\n", encoding="utf-8")
    recipe = {"adapter": "lora", "model": tiny, "data": rows, "output": folder / "out", "device": "cpu"}
    numbers = {"learning_rate": 1e-2, "max_steps": 4, "per_device_train_batch_size": 4, "num_generations": 0}
    go(recipe | numbers, save_steps=2)
    return folder / "out"


@pytest.fixture
def unfinished(whole: Path, recipe: dict[str, Any], without_drawing: None) -> Path:
    """The same run, killed between steps 2 and 4, as the recipe's output."""
    return cut_back(whole, recipe["output"], 2)


@pytest.fixture
def short(recipe: dict[str, Any], few_rows: Path) -> dict[str, Any]:
    """Four short rows in each step."""
    return recipe | {"data": few_rows, "learning_rate": 1e-3}


@pytest.fixture
def at_each_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Calls a function with callback and number before each step."""

    def put(act: Callable[[Any, int], None]) -> None:
        from train.loop.callback import RunCallback

        original = RunCallback.on_step_begin

        def begin(self: Any, args: Any, state: Any, control: Any, **named: Any) -> None:
            original(self, args, state, control, **named)
            act(self, state.global_step + 1)

        monkeypatch.setattr(RunCallback, "on_step_begin", begin)

    return put


def cut_back(source: Path, target: Path, step: int) -> Path:
    """Copy a run's folder as a process that was killed leaves it: checkpoints up to `step` alone, `running`.

    Its metrics hold all lines: a killed run had gone further than its last checkpoint.
    """
    shutil.copytree(source, target)
    for name in ("adapter", "loss.png"):
        path = target / name
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
    for folder in (target / "checkpoints").iterdir():
        if int(folder.name.removeprefix("step-")) > step:
            shutil.rmtree(folder)
    written = json.loads((target / "run.json").read_text(encoding="utf-8"))
    for field in ("results", "ended"):
        written.pop(field, None)
    text = json.dumps(written | {"status": "running"})
    (target / "run.json").write_text(text, encoding="utf-8")
    return target


@pytest.fixture
def signals() -> Iterator[Callable[[int], None]]:
    """Listens as the train command does, and sends a real signal to this process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    REQUEST.number = None
    listen()
    yield lambda number: os.kill(os.getpid(), number)
    for number, handler in before.items():
        signal.signal(number, handler)
    REQUEST.number = None


def step_lines(folder: Path) -> list[dict[str, Any]]:
    """The lines of metrics of a run, without those of findings."""
    return [line for line in _lines(folder) if "finding" not in line]


def finding_lines(folder: Path) -> list[dict[str, Any]]:
    """The findings in the metrics of a run, in the order of the file."""
    return [line["finding"] for line in _lines(folder) if "finding" in line]


def _lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]


def exact(folder: Path) -> dict[str, Any]:
    """Everything of a run that must not depend on where it was interrupted."""
    lines = step_lines(folder)
    for line in lines:
        for clock in ("seconds", "peak_memory_bytes"):
            line.pop(clock, None)
    results = json.loads((folder / "run.json").read_text("utf-8"))["results"]
    for clock in ("seconds", "train_seconds", "peak_memory_bytes"):
        results.pop(clock)
    weights = (folder / "adapter" / "adapter_model.safetensors").read_bytes()
    return {"metrics": lines, "findings": finding_lines(folder), "results": results, "weights": weights}


def reseal(folder: Path, name: str, content: str | bytes) -> None:
    """Change a file of a checkpoint, and its checksum."""
    from train.data.records import hash_file

    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    sums = json.loads((folder / "checksums.json").read_text("utf-8"))
    sums["files"][name] = {"sha256": hash_file(path), "bytes": path.stat().st_size}
    (folder / "checksums.json").write_text(json.dumps(sums), encoding="utf-8")


def rewrite(path: Path, **fields: Any) -> None:
    """Change fields of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | fields), encoding="utf-8")


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8"))
