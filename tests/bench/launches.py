"""How many operators a forward and a backward launch: the bare model, PEFT's adapters, and ours.

    python tests/bench/launches.py [--layers N] [--json]

The counts are exact, and the same on every machine with the same versions of torch, transformers and PEFT.
`calls`: every operator that is no view by its schema. `launches`: without those that compute nothing either,
`_unsafe_view` and `empty*`.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from typing import Any

import torch
from adapted import SMALL, VARIANTS, make_ids, make_model
from torch.utils._python_dispatch import TorchDispatchMode

TOKENS = 64
NOTHING = ("aten._unsafe_view", "aten.empty", "aten.new_empty")
"""Operators whose schema says no view, and that start no kernel; by the beginning of their names."""
BARS = {
    ("OFT exact", "PEFT OFT series"): 0.43,
    ("OFT series", "PEFT OFT series"): 0.43,
    ("OFT exact", "PEFT LoRA"): 0.85,
    ("OFT series", "PEFT LoRA"): 0.85,
    ("LoRA", "PEFT LoRA"): 0.85,
}


@dataclass(frozen=True)
class Count:
    """Of one forward and backward."""

    calls: int
    launches: int


class Counter(TorchDispatchMode):
    """Counts the operators that are called while it is on."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = self.launches = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        if not function.is_view:
            self.calls += 1
            self.launches += not str(function).startswith(NOTHING)
        return function(*arguments, **(named or {}))


def count(variant: str, num_layers: int) -> Count:
    """Of the second step of a model of SMALL's sizes: the first one makes what is kept."""
    sizes = {**SMALL, "num_hidden_layers": num_layers}
    model, ids = make_model(variant, sizes), make_ids(sizes, TOKENS)
    for _ in range(2):
        model.zero_grad()
        with Counter() as counter:
            model(input_ids=ids, labels=ids).loss.backward()
    return Count(counter.calls, counter.launches)


def bars(counts: dict[str, Count]) -> dict[str, dict[str, Any]]:
    """Each bar in both ways of counting."""
    found = {}
    for (name, other), bound in BARS.items():
        for way in ("calls", "launches"):
            value = getattr(counts[name], way) / getattr(counts[other], way)
            found[f"{way}: {name} / {other}"] = {"value": value, "bound": bound, "ok": value <= bound}
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print the table, or one JSON object; 1 where a bar falls short."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=SMALL["num_hidden_layers"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    counts = {variant: count(variant, options.layers) for variant in VARIANTS}
    held = bars(counts)
    if options.json:
        figures = {name: {"calls": found.calls, "launches": found.launches} for name, found in counts.items()}
        print(json.dumps({"torch": torch.__version__, "figures": figures, "bars": held}, indent=2))
    else:
        print(f"{'':16} {'calls':>7} {'launches':>9}")
        for name, found in counts.items():
            print(f"{name:16} {found.calls:7} {found.launches:9}")
        for name, bar in held.items():
            print(
                f"{name:45} {bar['value']:.3f}, at most {bar['bound']}{'' if bar['ok'] else ': falls short'}"
            )
    return 0 if all(bar["ok"] for bar in held.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
