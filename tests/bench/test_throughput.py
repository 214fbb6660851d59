"""What the throughput benchmark counts and judges; no times are taken here."""

from __future__ import annotations

import random
import statistics
from pathlib import Path

import peers
import pytest
import throughput
from contender import CONTENDERS
from workload import SHAPE, lengths, useful_operations, write_rows


def test_rows_have_the_lengths_that_were_drawn(tiny: Path, tmp_path: Path) -> None:
    found = write_rows(tmp_path, tiny, 20)
    assert found["num_rows"] == 20
    assert found["longest"] <= 700
    assert 0.4 < found["num_target_tokens"] / found["num_tokens"] < 0.8
    for name in ("alpaca", "messages"):
        assert len((tmp_path / f"{name}.jsonl").read_text("utf-8").splitlines()) == 20
    drawn = lengths(4000, random.Random(0))
    assert statistics.mean(drawn) == pytest.approx(180, rel=0.05)
    assert max(drawn) == 670


def test_useful_operations_of_the_frozen_weights_are_two_products_per_token() -> None:
    """Six layers of 14.9 million weights, 4 operations each and token; a head of 136 million per target."""
    one = {"num_tokens": 1, "num_target_tokens": 0, "sum_of_squares": 0}
    assert useful_operations(one, rank=0) == 4 * 6 * (2 * 896 * 896 + 2 * 896 * 128 + 3 * 896 * 4864)
    target = useful_operations(one | {"num_target_tokens": 1}, rank=0) - useful_operations(one, rank=0)
    assert target == 4 * 896 * SHAPE["vocab_size"]
    assert useful_operations(one, rank=8) > useful_operations(one, rank=0)


def test_bars_compare_seconds_and_memory_the_right_way_round() -> None:
    def of(seconds: float, peak: float) -> dict[str, float]:
        return {"seconds": seconds, "peak_memory_bytes": peak}

    bars = throughput.judge({"isotune": of(10, 3), "LLaMA-Factory": of(25, 5), "TRL": of(30, 5)})
    assert bars == {
        "tokens/s of LLaMA-Factory's default": {"value": 2.5, "bound": 2.2, "ok": True},
        "tokens/s of TRL's default": {"value": 3.0, "bound": 3.5, "ok": False},
        "memory of LLaMA-Factory's default": {"value": 0.6, "bound": 0.75, "ok": True},
    }


def test_every_bar_names_contenders_and_a_peer_needs_a_folder() -> None:
    for mine, other, *_ in throughput.BARS.values():
        assert {mine, other} <= CONTENDERS.keys()
    assert peers.python_of("TRL, best", None) is None
    assert peers.python_of("isotune", None) is not None


def test_a_peer_keeps_the_torch_that_it_was_given() -> None:
    needed = [
        "torch>=2.4.0",
        "torchaudio>=2.4.0",
        "torchdata<=0.11.0",
        "peft<=0.18.1",
        'deepspeed; extra == "deepspeed"',
    ]
    assert peers.wanted(needed) == ["torchdata<=0.11.0", "peft<=0.18.1"]


def test_a_peer_that_was_stopped_counts_with_what_it_had_and_ours_does_not() -> None:
    def of(seconds: float, stopped: int) -> dict[str, float]:
        return {"seconds": seconds, "peak_memory_bytes": 1, "stopped": stopped}

    name = "tokens/s of TRL's default"
    assert throughput.judge({"isotune": of(10, 0), "TRL": of(40, 1)})[name]["value"] == 4.0
    assert not throughput.judge({"isotune": of(10, 1), "TRL": of(40, 0)})


def test_a_run_that_was_kept_is_not_run_again(tmp_path: Path) -> None:
    path, kind = tmp_path / "runs.jsonl", {"rows": 2, "threads": 1}
    assert throughput.Kept(path, kind).take(0, "isotune", lambda: {"wall": 1.0}) == {"wall": 1.0}
    again = throughput.Kept(path, kind)
    assert again.take(0, "isotune", lambda: {"wall": 2.0}) == {"wall": 1.0}
    assert again.take(1, "isotune", lambda: {"wall": 3.0}) == {"wall": 3.0}
    assert throughput.Kept(path, kind | {"rows": 3}).found == {}
