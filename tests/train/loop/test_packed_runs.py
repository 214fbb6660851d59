"""Runs on packed rows: the losses of padded ones, steps that are means over target tokens, resume, ranks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.train.loop.conftest import cut_back, exact, go, read, reseal
from train.errors import EXIT_CONFIG, UserError


@pytest.fixture
def short(recipe: dict[str, Any], without_drawing: None) -> dict[str, Any]:
    return recipe | {"save_steps": 1, "save_total_limit": 100}


@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_packed_and_padded_runs_have_the_same_losses(
    short: dict[str, Any], tmp_path: Path, adapter: str
) -> None:
    """Also with accumulation, where the batches of a step differ in target tokens."""
    more = {"adapter": adapter, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    losses = []
    for packing in ("on", "off"):
        go(short, **more, output=tmp_path / packing, packing=packing, eval_data=short["data"])
        metrics = exact(tmp_path / packing)["metrics"]
        losses.append([line["loss"] for line in metrics if "loss" in line])
        manifest = read(tmp_path / packing / "run.json")
        assert manifest["device"]["packing"]["value"] == {"on": "by sample", "off": "padded"}[packing]
        losses[-1].append(manifest["results"]["eval_loss_after"])
    assert losses[0] == pytest.approx(losses[1], rel=2e-4)


def test_a_step_is_the_mean_over_its_target_tokens_however_it_is_cut(
    short: dict[str, Any], tmp_path: Path
) -> None:
    runs = {"whole": (4, 1), "halves": (2, 2), "quarters": (1, 4)}
    found = {}
    for name, (size, accumulation) in runs.items():
        more = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulation}
        go(short, **more, output=tmp_path / name, max_steps=2)
        found[name] = exact(tmp_path / name)["metrics"]
    for name in ("halves", "quarters"):
        for line, wanted in zip(found[name], found["whole"], strict=True):
            assert line["loss"] == pytest.approx(wanted["loss"], rel=1e-5)
            assert line["grad_norm"] == pytest.approx(wanted["grad_norm"], rel=1e-4)
            assert line["num_target_tokens"] == wanted["num_target_tokens"]


def test_a_run_by_tokens_goes_on_to_the_last_digit(short: dict[str, Any], tmp_path: Path) -> None:
    """Over the border of an epoch, in which rows are packed anew."""
    fields = {**short, "per_device_tokens": 400, "lora": {"lora_dropout": 0.1}, "max_steps": None}
    fields |= {"num_train_epochs": 1.5, "gradient_accumulation_steps": 2}
    go(fields, output=tmp_path / "whole")
    whole = exact(tmp_path / "whole")
    assert [line["step"] for line in whole["metrics"]] == list(range(1, len(whole["metrics"]) + 1))
    folder = cut_back(tmp_path / "whole", tmp_path / "resumed", 2)
    go(fields, output=folder)
    assert exact(folder) == whole

    other = cut_back(tmp_path / "whole", tmp_path / "padded", 2)
    path = other / "checkpoints" / "step-2"
    content = read(path / "checkpoint.json") | {"packing": "padded"}
    reseal(path, "checkpoint.json", json.dumps(content))
    with pytest.raises(UserError, match="had its batches padded, on this device they are by sample"):
        go(fields, output=other)


def test_a_sample_that_exceeds_the_tokens_of_a_forward_stops_the_run(short: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="per_device_tokens is 60") as caught:
        go(short, per_device_tokens=60)
    assert caught.value.exit_code == EXIT_CONFIG


def ranked(rank: int, port: int, folder: str, fields: dict[str, Any]) -> None:
    """One of two processes that train together."""
    import os

    from train.config import RunConfig
    from train.loop import run as run_module

    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    run_module.draw_loss = lambda *_: None
    run_module.run(RunConfig.model_validate({**fields, "output": Path(folder) / "both"}))


@pytest.mark.slow
@pytest.mark.parametrize("more", [{}, {"per_device_tokens": 300}])
def test_two_processes_train_as_one_that_takes_both_their_batches(
    short: dict[str, Any], tmp_path: Path, free_port: Callable[[], int], more: dict[str, Any]
) -> None:
    import torch.multiprocessing as mp

    fields = short | {"per_device_train_batch_size": 2, "max_steps": 3} | more
    mp.spawn(ranked, args=(free_port(), str(tmp_path), fields), nprocs=2)
    both = exact(tmp_path / "both")["metrics"]
    assert [line["step"] for line in both] == [1, 2, 3]
    if not more:  # by tokens, one process packs as many rows, not the same ones
        go(fields, gradient_accumulation_steps=2, output=tmp_path / "one")
        for line, wanted in zip(both, exact(tmp_path / "one")["metrics"], strict=True):
            for name in ("loss", "grad_norm", "num_target_tokens", "num_tokens"):
                assert line[name] == pytest.approx(wanted[name], rel=1e-4), name


@pytest.fixture
def free_port() -> Callable[[], int]:
    import socket

    def find() -> int:
        with socket.socket() as opened:
            opened.bind(("127.0.0.1", 0))
            return opened.getsockname()[1]

    return find


def test_a_batch_size_beside_a_number_of_tokens_is_said_to_do_nothing(
    short: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    go(short, per_device_tokens=600, max_steps=1)
    said = capsys.readouterr().out
    assert "batches: at most 600 tokens of one forward" in said
    assert "note: per_device_tokens decides, per_device_train_batch_size 4 has no effect" in said
