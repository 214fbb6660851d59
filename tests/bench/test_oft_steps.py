"""The parts of the timing script, with tiny settings; no time is asserted."""

from __future__ import annotations

import json

import oft_steps
import pytest

TINY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 64,
}


def test_every_model_takes_its_steps_in_each_round_and_one_before() -> None:
    calls = {"a": 0, "b": 0}

    def task(name: str) -> None:
        calls[name] += 1

    tasks = {name: lambda name=name: task(name) for name in calls}
    taken = oft_steps.time_rounds(tasks, 3, 2, clock=iter(range(100)).__next__)

    assert calls == {"a": 7, "b": 7}
    assert taken == {"a": [0.5] * 3, "b": [0.5] * 3}


def test_a_ratio_is_the_median_of_the_ratios_within_the_rounds() -> None:
    taken = {"ours": [1.0, 30.0, 2.0], "theirs": [2.0, 30.0, 8.0]}

    assert oft_steps.ratio(taken, "ours", "theirs") == 0.5


@pytest.mark.parametrize("bound", [0.0, 1e9])
def test_the_script_gives_figures_of_all_models_and_fails_where_a_bar_does(
    bound: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(oft_steps, "SHAPES", {"small": (TINY, 8)})
    monkeypatch.setattr(oft_steps, "BARS", {("small", "LoRA", "PEFT LoRA"): bound})

    failed = oft_steps.main(
        ["--rounds", "1", "--steps", "1", "--blocks", "16", "--maps", "4", "--shapes", "small", "--json"]
    )

    found = json.loads(capsys.readouterr().out)
    assert failed == (bound == 0)
    assert list(found["figures"]) == ["small, block 16", "4 blocks of 32"]
    assert set(found["figures"]["small, block 16"]) == set(oft_steps.VARIANTS) - {"bare"}
    assert found["bars"]["small, block 16: LoRA / PEFT LoRA"]["ok"] == (bound > 0)
    assert all(row["seconds"] > 0 for row in found["figures"]["4 blocks of 32"].values())
