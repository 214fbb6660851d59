"""The operators that an adapter launches, counted: exact, so no tolerance."""

from __future__ import annotations

import functools
import json

import launches
import pytest
import torch
from launches import Counter

count_once = functools.lru_cache(launches.count)


def per_layer(variant: str) -> tuple[int, int]:
    """What the third layer adds to the counts: every layer but the first adds the same."""
    two, three = count_once(variant, 2), count_once(variant, 3)
    return three.calls - two.calls, three.launches - two.launches


def at_24_layers(variant: str) -> launches.Count:
    calls, launched = per_layer(variant)
    three = count_once(variant, 3)
    return launches.Count(three.calls + 21 * calls, three.launches + 21 * launched)


@pytest.mark.parametrize(("variant", "due"), [("LoRA", 39), ("OFT exact", 23), ("OFT series", 23)])
def test_a_layer_with_an_adapter_launches_so_many_operators_more_than_without(variant: str, due: int) -> None:
    bare, adapted = per_layer("bare"), per_layer(variant)

    assert adapted[0] - bare[0] == due


def test_each_further_layer_adds_the_same() -> None:
    calls, launched = per_layer("LoRA")
    three, five = count_once("LoRA", 3), count_once("LoRA", 5)

    assert (five.calls - three.calls, five.launches - three.launches) == (2 * calls, 2 * launched)


def test_at_24_layers_the_bars_hold_in_both_ways_of_counting() -> None:
    names = {name for pair in launches.BARS for name in pair}

    bars = launches.bars({name: at_24_layers(name) for name in names})

    assert len(bars) == 2 * len(launches.BARS)
    assert {name: bar["value"] for name, bar in bars.items() if not bar["ok"]} == {}


def test_views_are_not_counted_and_what_computes_nothing_only_as_a_call() -> None:
    x = torch.ones(2, 3)

    with Counter() as counter:
        x.view(3, 2).t().unsqueeze(0)
        torch.empty(4)
        torch.empty_like(x)
        x @ x.t()

    assert (counter.calls, counter.launches) == (3, 1)


@pytest.mark.parametrize(("ours", "due"), [(20, 0), (60, 1)])
def test_the_script_fails_where_a_ratio_is_above_its_bound(
    ours: int, due: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def counted(variant: str, num_layers: int) -> launches.Count:
        calls = 100 if variant.startswith("PEFT") else ours
        return launches.Count(calls, calls)

    monkeypatch.setattr(launches, "count", counted)

    assert launches.main(["--json"]) == due
    bar = json.loads(capsys.readouterr().out)["bars"]["calls: OFT exact / PEFT OFT series"]
    assert bar == {"value": ours / 100, "bound": 0.43, "ok": not due}
