"""Two processes of `train --nproc` train as one with both their batches, and leave one run behind."""

from __future__ import annotations

import gc
import shutil
import signal
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.train.loop.conftest import cut_back, exact, go, read, step_lines
from tests.train.loop.started import ended, start
from train.device import _torch_device
from train.errors import EXIT_CONFIG, UserError
from train.loop import processes

FIGURES = {"loss", "grad_norm", "num_tokens", "num_target_tokens", "learning_rate", "epoch"}


@pytest.fixture
def fields(recipe: dict[str, Any]) -> dict[str, Any]:
    """Four steps of two samples per process, whose optimizer does not magnify rounding."""
    numbers = {"per_device_train_batch_size": 2, "learning_rate": 1e-3, "adam_epsilon": 1e-3}
    return recipe | numbers


def weights(output: Path) -> dict[str, torch.Tensor]:
    return load_file(output / "adapter" / "adapter_model.safetensors")


def require_same_training(ours: Path, wanted: Path) -> None:
    """The same steps to 1e-6, and the same adapter."""
    for line, other in zip(step_lines(ours), step_lines(wanted), strict=True):
        assert line.keys() == other.keys()
        for name in other.keys() & FIGURES:
            assert line[name] == pytest.approx(other[name], rel=1e-6, abs=1e-6), name
    found, other_weights = weights(ours), weights(wanted)
    assert found.keys() == other_weights.keys()
    for name, tensor in found.items():
        assert float((tensor - other_weights[name]).abs().max()) < 1e-6, name


def test_two_processes_train_as_one_and_leave_one_run(
    fields: dict[str, Any], tmp_path: Path, without_drawing: None
) -> None:
    code, out, errors = ended(start(fields, "save_steps=2"))
    assert (code, errors) == (0, "")
    output = fields["output"]
    assert sum(line.startswith("step 1/4") for line in out.splitlines()) == 1
    assert out.splitlines()[-1].startswith("finished: 4 steps")
    wanted = {"run.json", "metrics.jsonl", "checkpoints", "adapter", "loss.png"}
    assert {path.name for path in output.iterdir()} == wanted
    run = read(output / "run.json")
    assert run["status"] == "finished"
    assert run["plan"]["num_devices"] == 2
    one = fields | {"output": tmp_path / "one", "gradient_accumulation_steps": 2}
    go(one)
    require_same_training(output, one["output"])


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ["lora", "oft"])
@pytest.mark.parametrize("packing", ["on", "off"])
def test_with_accumulation_and_evaluation_they_do_too(
    fields: dict[str, Any], tmp_path: Path, without_drawing: None, adapter: str, packing: str
) -> None:
    more = {"adapter": adapter, "packing": packing, "eval_data": fields["data"]}
    both = fields | more | {"per_device_train_batch_size": 1}
    code, _, errors = ended(start(both | {"gradient_accumulation_steps": 2}))
    assert (code, errors) == (0, "")
    one = both | {"output": tmp_path / "one", "gradient_accumulation_steps": 4}
    go(one)
    require_same_training(fields["output"], one["output"])
    losses = [
        read(folder / "run.json")["results"]["eval_losses"] for folder in (both["output"], one["output"])
    ]
    for when in ("before", "after"):
        assert losses[0]["eval"][when] == pytest.approx(losses[1]["eval"][when], abs=1e-6)


@pytest.mark.slow
def test_one_batch_of_both_is_the_same_step(
    fields: dict[str, Any], tmp_path: Path, without_drawing: None
) -> None:
    """The larger forward adds in another order: nearly the same."""
    assert ended(start(fields))[0] == 0
    one = fields | {"output": tmp_path / "one", "per_device_train_batch_size": 4}
    go(one)
    require_same_training(fields["output"], one["output"])


@pytest.mark.slow
def test_a_run_that_goes_on_is_exact_with_dropout_on_each_rank(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    sets = ("lora.lora_dropout=0.2", "save_steps=2")
    whole = fields | {"output": tmp_path / "whole"}
    assert ended(start(whole, *sets))[0] == 0
    states = torch.load(whole["output"] / "checkpoints" / "step-2" / "rng_state.pt", weights_only=True)
    first, second = (state["cpu"] for state in states["ranks"])
    assert not torch.equal(first, second), "each rank drops other units"
    cut_back(whole["output"], fields["output"], 2)
    code, out, _ = ended(start(fields, *sets))
    assert code == 0
    assert "resume: goes on after step 2" in out
    assert exact(fields["output"]) == exact(whole["output"])

    shutil.rmtree(fields["output"])
    cut_back(whole["output"], fields["output"], 2)
    before = (fields["output"] / "run.json").read_bytes()
    code, _, errors = ended(start(fields, *sets, nproc="1"))
    assert code == EXIT_CONFIG
    lines = errors.splitlines()
    assert lines[0] == "error: resume: the run so far was of 2 processes, this start is of 1"
    assert lines[1].startswith(
        "hint: go on with 2; or begin anew in another --output, with --set init_adapter="
    )
    assert (fields["output"] / "run.json").read_bytes() == before


@pytest.mark.slow
def test_a_signal_stops_all_ranks_after_the_same_step_and_the_run_goes_on(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    from tests.train.loop.started import read_until

    sets = ("max_steps=60", "lora.lora_dropout=0.2")
    process = start(fields, *sets)
    read_until(process, "step 2/")
    process.send_signal(signal.SIGTERM)
    code, _, errors = ended(process)
    lines = errors.splitlines()
    assert lines[0] == "SIGTERM: the run stops after this batch and saves a checkpoint"
    assert lines[1].startswith(f"error: stopped by SIGTERM; {fields['output']}/checkpoints/step-")
    assert lines[2:] == ["hint: the same command goes on from there"]
    assert code == 75
    assert read(fields["output"] / "run.json")["status"] == "stopped"
    assert ended(start(fields, *sets))[0] == 0
    whole = fields | {"output": tmp_path / "whole"}
    assert ended(start(whole, *sets))[0] == 0
    assert exact(fields["output"]) == exact(whole["output"])


@pytest.mark.slow
@pytest.mark.parametrize("places", ["PET_", ""])
def test_processes_that_a_scheduler_starts_take_part(
    fields: dict[str, Any], tmp_path: Path, without_drawing: None, places: str
) -> None:
    """Two machines, one process each: torchrun's variables, and those of a Pod that has no LOCAL_RANK."""
    number = "29731" if places else "29732"

    def variables(rank: int) -> dict[str, str]:
        meeting = {f"{places}MASTER_ADDR": "127.0.0.1", f"{places}MASTER_PORT": number}
        if places:
            return meeting | {"PET_NNODES": "2", "PET_NODE_RANK": str(rank), "PET_NPROC_PER_NODE": "1"}
        return meeting | {"RANK": str(rank), "WORLD_SIZE": "2", "GLOO_SOCKET_IFNAME": "lo"}

    processes = [start(fields, nproc="", **variables(rank)) for rank in range(2)]
    results = [ended(process) for process in processes]
    assert [(code, errors) for code, _, errors in results] == [(0, ""), (0, "")]
    assert results[0][1].splitlines()[-1].startswith("finished: 4 steps")
    assert results[1][1] == ""
    one = fields | {"output": tmp_path / "one", "gradient_accumulation_steps": 2}
    go(one)
    require_same_training(fields["output"], one["output"])


def test_variables_that_name_no_place_to_meet_are_refused(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one scheduler sets: all devices of a machine in LOCAL_RANK."""
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "16"), ("LOCAL_RANK", "0,1,2,3")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as caught:
        go(fields)
    assert caught.value.exit_code == EXIT_CONFIG
    assert caught.value.message.splitlines() == [
        "LOCAL_RANK: 0,1,2,3, a number is due",
        "MASTER_ADDR: is not set",
        "MASTER_PORT: is not set, a number is due",
    ]


def test_ranks_that_are_no_numbers_are_refused_by_name(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a run and by what asks for a device alone, as eval does."""
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "two"), ("LOCAL_RANK", "")):
        monkeypatch.setenv(name, value)
    for work in (lambda: go(fields), lambda: _torch_device("cpu")):
        with pytest.raises(UserError) as caught:
            work()
        assert caught.value.exit_code == EXIT_CONFIG
        assert caught.value.message.splitlines() == [
            "WORLD_SIZE: 'two': a number is due",
            "LOCAL_RANK: '': a number is due",
        ]
        assert caught.value.hint.startswith("unset what a scheduler left there")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert processes.local_rank() == 3


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_weights_that_are_spread_over_the_processes_train_the_same_adapter(
    fields: dict[str, Any], tmp_path: Path, without_drawing: None, adapter: str
) -> None:
    """Three rows of evaluation: one rank has a turn without rows of its own."""
    rows = fields["data"].read_text(encoding="utf-8").splitlines()[:3]
    few = tmp_path / "few.jsonl"
    few.write_text("\n".join(rows) + "\n", encoding="utf-8")
    more = {"adapter": adapter, "eval_data": few, "per_device_train_batch_size": 1, "num_generations": 1}
    run = fields | more | {"max_new_tokens": 4}
    code, out, errors = ended(start(run, "fsdp=full", "save_steps=2", "gradient_checkpointing=true"))
    assert (code, errors) == (0, "")
    assert "frozen weights of" in out
    one = run | {"output": tmp_path / "one", "gradient_accumulation_steps": 2}
    go(one)
    require_same_training(run["output"], one["output"])
    results = [read(folder / "run.json")["results"] for folder in (run["output"], one["output"])]
    assert results[0]["generations"] == results[1]["generations"]
    assert results[0]["eval_loss_after"] == pytest.approx(results[1]["eval_loss_after"], abs=1e-6)


def test_one_process_has_nobody_to_spread_weights_over(fields: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="fsdp: weights are spread over several processes, this run has one"):
        go(fields, fsdp="full")
    assert not fields["output"].exists()


def test_no_group_is_let_go_of_when_the_processes_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end waits for threads that may wait for the GIL."""
    from torch import distributed

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    talk = processes._Talk(distributed.new_group(backend="gloo"))
    monkeypatch.setattr(processes, "_TALK", talk)
    groups = [weakref.ref(group) for group in (distributed.group.WORLD, talk.group)]
    processes.end()
    gc.collect()
    assert not distributed.is_initialized()
    assert all(group() is not None for group in groups)
