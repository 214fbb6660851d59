"""How long a training step takes with PEFT's adapters and with ours, and what the rotations cost alone.

    python tests/bench/oft_steps.py [--rounds N] [--steps N] [--threads N] [--blocks 16 32 64]
        [--shapes small large] [--clock wall|cpu] [--json]

A step is forward, backward and AdamW. In each round every model takes its steps, in another order each time;
a ratio is the median of the ratios within the rounds, so that what else the machine does falls on both sides.
On a busy machine `--clock cpu` counts this process's own seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from adapted import LARGE, SMALL, VARIANTS, make_ids, make_model

SHAPES = {"small": (SMALL, 64), "large": (LARGE, 768)}
"""Sizes and tokens: the first for its launches, the second for its arithmetic."""
BASELINE = "PEFT OFT series"
BARS = {
    ("small", "OFT exact", BASELINE): 0.9,
    ("large", "OFT exact", BASELINE): 1.02,
}
NUM_BLOCKS = 7680
"""Blocks of 32 in the layers of a 0.5B model, for the maps alone."""
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}


def stepper(variant: str, sizes: dict[str, int], tokens: int, block: int) -> Callable[[], None]:
    """One training step of a model of this kind."""
    import torch

    model = make_model(variant, sizes, block=block)
    ids = make_ids(sizes, tokens)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True) if trained else None

    def step() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        if optimizer:
            optimizer.step()
            optimizer.zero_grad()

    return step


def time_rounds(
    tasks: dict[str, Callable[[], Any]], rounds: int, steps: int, clock: Callable[[], float]
) -> dict[str, list[float]]:
    """Seconds per call of each task in each round, after a first call that is not counted."""
    for task in tasks.values():
        task()
    taken: dict[str, list[float]] = {name: [] for name in tasks}
    order = list(tasks)
    shuffle = random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            started = clock()
            for _ in range(steps):
                tasks[name]()
            taken[name].append((clock() - started) / steps)
    return taken


def ratio(taken: dict[str, list[float]], name: str, other: str) -> float:
    """The median over the rounds of one task's time to another's."""
    return statistics.median(mine / its for mine, its in zip(taken[name], taken[other], strict=True))


def rotation_tasks(blocks: int, block: int) -> dict[str, Callable[[], Any]]:
    """The maps of so many blocks, forward and backward, and the measures of drift."""
    import torch

    from train.adapters import cayley

    vectors = torch.randn(blocks, block * (block - 1) // 2, generator=torch.Generator().manual_seed(0)) * 0.01
    gradient = torch.ones(blocks, block, block)

    def mapped(to_rotation: Callable[[Any], Any]) -> Callable[[], Any]:
        def task() -> None:
            leaf = vectors.clone().requires_grad_()
            to_rotation(cayley.skew_matrices(leaf, block)).backward(gradient)

        return task

    skew = cayley.skew_matrices(vectors, block)
    rotations = cayley.exact(skew)
    return {
        "exact": mapped(cayley.exact),
        "series of 5 terms": mapped(lambda skew: cayley.series(skew, 5)),
        "orthogonality error": lambda: cayley.orthogonality_error(rotations),
        "spectral norm": lambda: cayley.spectral_norm(skew),
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Figures and bars of all shapes and block sizes, and the load of the machine before and after."""
    clock = CLOCKS[options.clock]
    before = os.getloadavg()
    figures: dict[str, Any] = {}
    bars: dict[str, Any] = {}
    for shape in options.shapes:
        sizes, tokens = SHAPES[shape]
        for block in options.blocks:
            tasks = {name: stepper(name, sizes, tokens, block) for name in VARIANTS if name != "bare"}
            taken = time_rounds(tasks, options.rounds, options.steps, clock)
            figures[f"{shape}, block {block}"] = in_words(taken)
            bars |= {
                f"{shape}, block {block}: {name} / {other}": held(ratio(taken, name, other), bound)
                for (place, name, other), bound in BARS.items()
                if place == shape
            }
    maps = time_rounds(rotation_tasks(options.maps, 32), options.rounds, 1, clock)
    figures[f"{options.maps} blocks of 32"] = {
        name: {"seconds": statistics.median(seconds)} for name, seconds in maps.items()
    }
    return {"clock": options.clock, "load": [before[0], os.getloadavg()[0]], "figures": figures, "bars": bars}


def in_words(taken: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Of each model the median of its seconds, and its ratios to PEFT's."""
    return {
        name: {
            "seconds": statistics.median(seconds),
            BASELINE: ratio(taken, name, BASELINE),
            "PEFT LoRA": ratio(taken, name, "PEFT LoRA"),
        }
        for name, seconds in taken.items()
    }


def held(value: float, bound: float) -> dict[str, Any]:
    """A bar."""
    return {"value": value, "bound": bound, "ok": value <= bound}


def show(found: dict[str, Any]) -> None:
    """The figures as a table."""
    print(f"load {found['load'][0]:.1f} to {found['load'][1]:.1f}, {found['clock']} seconds")
    for title, rows in found["figures"].items():
        print(f"\n{title}")
        for name, figures in rows.items():
            ratios = [f"{value:.3f} of {key}" for key, value in figures.items() if key != "seconds"]
            print(f"  {name:20} {figures['seconds']:8.4f}  {', '.join(ratios)}")
    print()
    for name, bar in found["bars"].items():
        print(f"{name:50} {bar['value']:.3f}, at most {bar['bound']}{'' if bar['ok'] else ': falls short'}")


def main(arguments: list[str] | None = None) -> int:
    """Print the table, or one JSON object; 1 where a bar falls short."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=2, help="of each model in a round")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--blocks", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=list(SHAPES))
    parser.add_argument("--maps", type=int, default=NUM_BLOCKS, help="blocks for the maps alone")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)

    import torch

    torch.set_num_threads(options.threads)
    found = measure(options)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        show(found)
    return 0 if all(bar["ok"] for bar in found["bars"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
