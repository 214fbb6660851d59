"""The bytes that scale.py computes are those that processes send and that a checkpoint holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import scale
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from adapted import SMALL, make_ids, make_model
from torch.nn.parallel import DistributedDataParallel

SIZES = {**SMALL, "num_hidden_layers": 2, "tie_word_embeddings": False}
SHAPE = scale.Shape(
    **{name: SIZES[name] for name in scale.Shape.__annotations__ if name in SIZES},
)
VARIANTS = {"lora": "LoRA", "oft": "OFT exact"}
STEPS = 3


def written() -> int:
    """Return the bytes that this process has written, to sockets too."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("wchar")).split()[1])


def step_bytes(rank: int, meeting: str, processes: int, adapter: str, folder: str) -> None:
    """Write to `folder` what a step of this process sends; the first two, which also set up, do not count."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=processes)
    model = make_model(VARIANTS[adapter], SIZES, rank=scale.SIZES["lora"], block=scale.SIZES["oft"])
    # OFT keeps the places of its numbers in buffers, which never change: nobody has to send them.
    parallel = DistributedDataParallel(model, broadcast_buffers=False)
    ids = make_ids(SIZES, 16)
    sent = []
    for _ in range(2 + STEPS):
        dist.barrier()
        before = written()
        parallel(input_ids=ids, labels=ids).loss.backward()
        sent.append(written() - before)
    # The least of them: a process writes files too, now and then.
    Path(folder, str(rank)).write_text(json.dumps(min(sent[2:])), encoding="utf-8")
    dist.destroy_process_group()


def measured(tmp_path: Path, processes: int, adapter: str) -> list[float]:
    mp.spawn(step_bytes, (str(tmp_path / "meeting"), processes, adapter, str(tmp_path)), nprocs=processes)
    return [json.loads((tmp_path / str(rank)).read_text(encoding="utf-8")) for rank in range(processes)]


@pytest.mark.parametrize(
    ("processes", "adapter"),
    [
        (2, "lora"),
        pytest.param(2, "oft", marks=pytest.mark.slow),
        pytest.param(4, "lora", marks=pytest.mark.slow),
        pytest.param(4, "oft", marks=pytest.mark.slow),
    ],
)
def test_a_step_sends_the_adapter_s_gradients_and_nothing_else(
    tmp_path: Path, processes: int, adapter: str
) -> None:
    due = scale.ring_bytes(SHAPE.adapter_parameters(adapter, scale.SIZES[adapter]) * scale.FP32, processes)

    sent = measured(tmp_path, processes, adapter)

    # Heads of messages and the word that a barrier is over: a few KiB.
    assert all(due <= size < due * 1.02 + 8192 for size in sent), (due, sent)


@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_the_numbers_of_a_model_and_its_adapter_are_those_of_the_real_one(adapter: str) -> None:
    model = make_model(VARIANTS[adapter], SIZES, rank=scale.SIZES["lora"], block=scale.SIZES["oft"])

    trained = sum(part.numel() for part in model.parameters() if part.requires_grad)
    frozen = sum(part.numel() for part in model.parameters() if not part.requires_grad)

    assert trained == SHAPE.adapter_parameters(adapter, scale.SIZES[adapter])
    assert frozen == SHAPE.base_parameters()


@pytest.mark.parametrize(
    ("model", "billions"), [("Qwen2.5-0.5B", 0.494), ("Qwen2.5-7B", 7.616), ("Qwen2.5-32B", 32.764)]
)
def test_the_shapes_have_as_many_numbers_as_the_models_cards_say(model: str, billions: float) -> None:
    assert scale.SHAPES[model].base_parameters() / 1e9 == pytest.approx(billions, abs=0.001)


@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_a_checkpoint_holds_twelve_bytes_per_trained_number(recipe: dict[str, Any], adapter: str) -> None:
    from train.config import RunConfig
    from train.loop.run import run

    config = json.loads((recipe["model"] / "config.json").read_text(encoding="utf-8"))
    shape = scale.Shape(**{name: config[name] for name in scale.Shape.__annotations__})
    size = {"lora": {"r": 8}, "oft": {"oft_block_size": 32}}[adapter]
    run(RunConfig(**{**recipe, "adapter": adapter, adapter: size, "max_steps": 1}))

    folder = recipe["output"] / "checkpoints" / "step-1"
    state = torch.load(folder / "optimizer.pt", weights_only=True)["state"]
    moments = sum(entry[name].nbytes for entry in state.values() for name in ("exp_avg", "exp_avg_sq"))
    from safetensors.torch import load_file

    weights = sum(tensor.nbytes for tensor in load_file(folder / "adapter_model.safetensors").values())

    assert (
        weights + moments == shape.adapter_parameters(adapter, scale.SIZES[adapter]) * scale.CHECKPOINT_BYTES
    )


def test_more_nodes_send_little_more_and_keep_the_same() -> None:
    speeds = scale.Speeds(100, 100, 8192)
    rows = [scale.figures("x", SHAPE, "lora", nodes, 8, speeds) for nodes in (1, 2, 8)]

    assert all(bar["ok"] for bar in scale.bars(rows).values())
    assert rows[-1].ddp_sent_bytes / rows[0].ddp_sent_bytes == pytest.approx((63 / 64) / (7 / 8), rel=1e-6)
    assert {row.checkpoint_bytes for row in rows} == {rows[0].checkpoint_bytes}


def test_a_model_that_fills_half_a_card_is_sharded() -> None:
    speeds = scale.Speeds(100, 100, 8192)
    row = scale.figures("x", scale.SHAPES["Qwen2.5-32B"], "oft", 2, 8, speeds)

    assert (scale.advice(row, 64 * 2**30), scale.advice(row, 160 * 2**30)) == ("FSDP", "DDP")
