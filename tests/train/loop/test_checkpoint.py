"""Checkpoint folders: whole or not there, found again, set aside where damaged, the newest ones kept."""

from __future__ import annotations

import json
import os
import resource
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.train.loop.conftest import cut_back, exact, go
from train.errors import EXIT_CONFIG, EXIT_TRAINING, UserError
from train.loop import checkpoint


def fill(folder: Path) -> None:
    """Small files with the names that a checkpoint has."""
    for name in checkpoint.DUE:
        (folder / name).write_text(json.dumps({"step": 7, "of": name}), encoding="utf-8")


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    """A folder with the checkpoints of steps 9 and 10."""
    for step in (9, 10):
        checkpoint.write(tmp_path / "checkpoints", step, fill)
    return tmp_path / "checkpoints"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def truncate(folder: Path) -> None:
    os.truncate(folder / "adapter_model.safetensors", 5)


def flip(folder: Path) -> None:
    content = bytearray((folder / "optimizer.pt").read_bytes())
    content[0] ^= 1
    (folder / "optimizer.pt").write_bytes(content)


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def unlist(folder: Path) -> None:
    sums = json.loads((folder / "checksums.json").read_text("utf-8"))
    del sums["files"]["scheduler.pt"]
    (folder / "checksums.json").write_text(json.dumps(sums), encoding="utf-8")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (truncate, "adapter_model.safetensors has 5 of 46 bytes"),
        (flip, "optimizer.pt has another checksum"),
        (lambda folder: (folder / "trainer_state.json").unlink(), "trainer_state.json is missing"),
        (lambda folder: (folder / "checksums.json").unlink(), "checksums.json is missing"),
        (lambda folder: (folder / "checksums.json").write_text("{"), "checksums.json cannot be read"),
        (lambda folder: (folder / "checksums.json").write_text("[]"), "checksums.json cannot be read"),
        (unlist, "scheduler.pt is missing"),
        (empty, "checksums.json is missing"),
    ],
)
def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_serves(
    parent: Path, damage: Callable[[Path], Any], reason: str
) -> None:
    damage(parent / "step-10")
    found, lines = checkpoint.find(parent, is_weights_only=False)
    assert found is not None
    assert found.folder == parent / "step-9"
    assert lines == [f"checkpoints: step-10 is set aside as step-10.bad: {reason}"]
    assert names(parent) == ["step-10.bad", "step-9"]


def test_the_newest_is_that_of_the_highest_step_not_of_the_last_name(parent: Path) -> None:
    found, lines = checkpoint.find(parent, is_weights_only=False)
    assert (found and found.folder.name, lines) == ("step-10", [])


def test_no_name_is_given_twice_to_what_is_set_aside(parent: Path) -> None:
    for _ in range(2):
        truncate(parent / "step-10")
        checkpoint.find(parent, is_weights_only=False)
        checkpoint.write(parent, 10, fill)
    assert names(parent) == ["step-10", "step-10.bad", "step-10.bad-2", "step-9"]


def test_where_none_is_whole_all_are_named_and_left_as_they_are(parent: Path) -> None:
    truncate(parent / "step-10")
    flip(parent / "step-9")
    with pytest.raises(UserError) as caught:
        checkpoint.find(parent, is_weights_only=False)
    assert caught.value.exit_code == EXIT_CONFIG
    assert caught.value.message.splitlines() == [
        f"{parent}/step-10: is no whole checkpoint: adapter_model.safetensors has 5 of 46 bytes",
        f"{parent}/step-9: is no whole checkpoint: optimizer.pt has another checksum",
    ]
    assert names(parent) == ["step-10", "step-9"]
    with pytest.raises(UserError):  # weights that are damaged serve nobody
        checkpoint.find(Path(shutil.copytree(parent, parent / "a", ignore=lambda *_: ["step-9"])), True)


def test_weights_only_does_without_damaged_state_files(parent: Path) -> None:
    flip(parent / "step-10")
    found, lines = checkpoint.find(parent, is_weights_only=True)
    assert found is not None
    assert (found.folder.name, found.missing, lines) == ("step-10", ("optimizer.pt",), [])


def test_what_was_never_finished_is_removed_and_said(parent: Path) -> None:
    shutil.copytree(parent / "step-10", parent / "step-11.half")
    found, lines = checkpoint.find(parent, is_weights_only=False)
    assert found is not None
    assert found.folder.name == "step-10"
    assert lines == ["checkpoints: removed step-11.half, which was never finished"]
    assert names(parent) == ["step-10", "step-9"]


def test_a_checkpoint_has_its_name_only_when_all_of_it_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    real_sync, real_replace = os.fsync, Path.replace

    def sync(descriptor: int) -> None:
        events.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real_sync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        events.append(f"{self.name} > {target.name}")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", replace)
    checkpoint.write(tmp_path, 3, fill)
    files = sorted(checkpoint.DUE)
    assert events == [*files, "checksums.json", "step-3.half", "step-3.half > step-3", tmp_path.name]


def test_a_checkpoint_that_cannot_be_written_costs_no_other(parent: Path) -> None:
    def fail(folder: Path) -> None:
        fill(folder)
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="step-11: the checkpoint cannot be written: .*No space") as caught:
        checkpoint.write(parent, 11, fail)
    assert caught.value.exit_code == EXIT_TRAINING
    assert "step-10 is whole: the same command goes on from it" in caught.value.hint
    assert names(parent) == ["step-10", "step-9"]


def test_the_oldest_are_removed_by_step_and_nothing_else(parent: Path) -> None:
    (parent / "step-8.bad").mkdir()
    (parent / "notes").mkdir()
    checkpoint.write(parent, 100, fill)
    assert checkpoint.rotate(parent, 2) == []
    assert names(parent) == ["notes", "step-10", "step-100", "step-8.bad"]


def test_a_folder_loses_its_good_name_before_its_files(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise OSError(39, "Directory not empty", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    lines = checkpoint.rotate(parent, 1)
    assert names(parent) == ["step-10", "step-9.half"]
    assert "step-9.half" in lines[0]
    monkeypatch.undo()
    checkpoint.rotate(parent, 1)
    assert names(parent) == ["step-10"]


def test_a_full_disk_stops_the_run_with_its_last_checkpoint_whole(
    recipe: dict[str, Any], unfinished: Path, whole: Path
) -> None:
    """The limit on file sizes stands for the disk: the operating system refuses the write."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (whole / "checkpoints" / "step-4" / "optimizer.pt").stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, before[1]))
    try:
        with pytest.raises(UserError, match="step-4: the checkpoint cannot be written") as caught:
            go(recipe, save_total_limit=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.exit_code == EXIT_TRAINING
    assert names(unfinished / "checkpoints") == ["step-2"]
    assert json.loads((unfinished / "run.json").read_text("utf-8"))["status"] == "failed"
    go(recipe)
    assert exact(unfinished) == exact(whole)


@pytest.mark.parametrize("name", ["adapter_model.safetensors", ""])
def test_a_run_goes_on_from_the_checkpoint_before_a_torn_one(
    recipe: dict[str, Any], whole: Path, without_drawing: None, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = cut_back(whole, recipe["output"], 4)
    newest = folder / "checkpoints" / "step-4"
    if name:
        os.truncate(newest / name, (newest / name).stat().st_size // 2)
    else:
        empty(newest)
    shutil.copytree(folder / "checkpoints" / "step-2", folder / "checkpoints" / "step-6.half")
    go(recipe)
    said = capsys.readouterr().out
    assert "step-4 is set aside as step-4.bad" in said
    assert "removed step-6.half" in said
    assert exact(folder) == exact(whole)


def test_a_checkpoint_s_adapter_loads_with_plain_peft(recipe: dict[str, Any], whole: Path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    loaded = []
    for folder in (whole / "checkpoints" / "step-4", whole / "adapter"):
        base = AutoModelForCausalLM.from_pretrained(recipe["model"], dtype=torch.float32)
        with torch.no_grad():
            model = PeftModel.from_pretrained(base, str(folder)).eval()
            loaded.append(model(torch.arange(20, 60).unsqueeze(0)).logits)
    assert torch.equal(*loaded)
    assert checkpoint.checkpoint_adapter_config(whole / "checkpoints" / "step-4")["peft_type"] == "LORA"


def test_checkpoints_are_kept_every_so_many_steps_and_after_the_last_one(
    recipe: dict[str, Any], tmp_path: Path, without_drawing: None
) -> None:
    go(recipe, max_steps=5, save_steps=2, save_total_limit=2)
    assert names(tmp_path / "out" / "checkpoints") == ["step-4", "step-5"]


def test_ruined_weights_are_never_saved(
    recipe: dict[str, Any], tmp_path: Path, without_drawing: None
) -> None:
    """Between two lines of metrics: they would push the last sound checkpoint out."""
    numbers = {"learning_rate": 1e30, "max_grad_norm": 1e30, "max_steps": 8, "logging_steps": 8}
    with pytest.raises(UserError, match="step [23]: (loss|sum_of_weights) is (nan|inf)") as caught:
        go(recipe, **numbers, save_steps=1, save_total_limit=1)
    assert caught.value.exit_code == EXIT_TRAINING
    assert len(names(tmp_path / "out" / "checkpoints")) == 1
    found, _ = checkpoint.find(tmp_path / "out" / "checkpoints", is_weights_only=False)
    assert found is not None
    weights = load_file(found.folder / "adapter_model.safetensors").values()
    assert all(bool(tensor.isfinite().all()) for tensor in weights)


def test_others_may_read_a_checkpoint(whole: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    for path in (whole / "checkpoints" / "step-4").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask, path.name
