"""What a packed row costs against the length of its samples, with each way to keep samples apart.

    python tests/bench/packed_rows.py [--tokens N] [--lengths N ...] [--rounds N] [--threads N] [--json]

A step is forward and backward of LoRA on a model with the widths of Qwen2.5-0.5B, three layers. Each row has
the same number of tokens, in samples of one length. Attention that runs sample by sample costs the sum of the
samples' squares; one with a mask over the row, and one row that is padded, cost the row's square or padding.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

from adapted import LARGE, make_model
from oft_steps import CLOCKS, ratio, time_rounds

METHODS = ("by sample", "by mask", "padded")
BAR = "a packed row against its samples alone"
BOUND = 1.05


def stepper(model: Any, sample_tokens: list[int], method: str) -> Callable[[], None]:
    """Forward and backward of samples of these lengths in one batch; `alone`: one after another."""
    import torch

    from train.data.template import Sample
    from train.loop.loss import target_loss
    from train.loop.packed import attending, batch_of, forward_context, split_batch

    draw = torch.Generator().manual_seed(0)
    rows = [
        torch.randint(0, LARGE["vocab_size"], (length,), generator=draw).tolist() for length in sample_tokens
    ]
    samples = [Sample(row, row, "bench") for row in rows]
    groups = [[sample] for sample in samples] if method == "alone" else [samples]
    way = "by sample" if method == "alone" else method
    batches = [split_batch(batch_of(group, 0, way), way) for group in groups]

    def step() -> None:
        with attending(model, way, "sdpa"), forward_context(way):
            for inputs, labels in batches:
                target_loss(model, model, inputs, labels).total.backward()
        model.zero_grad()

    return step


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a row for each length and method, and the bar."""
    model = make_model("LoRA", LARGE)
    tasks = {
        (length, method): stepper(model, [length] * (options.tokens // length), method)
        for length in options.lengths
        for method in (*METHODS, "alone")
    }
    named = {f"{length} {method}": task for (length, method), task in tasks.items()}
    taken = time_rounds(named, options.rounds, 1, CLOCKS[options.clock])
    seconds = {name: statistics.median(values) for name, values in taken.items()}
    worst = max(ratio(taken, f"{length} by sample", f"{length} alone") for length in options.lengths)
    bar = {"value": worst, "bound": BOUND, "ok": worst <= BOUND}
    return {"tokens": options.tokens, "seconds": seconds, "bars": {BAR: bar}}


def show(report: dict[str, Any], lengths: list[int]) -> None:
    """The seconds as a table, a length a line."""
    columns = (*METHODS, "alone")
    print(f"{report['tokens']} tokens in one row; seconds of forward and backward")
    print(f"{'sample tokens':>14}" + "".join(f"{name:>12}" for name in columns))
    for length in lengths:
        figures = [report["seconds"][f"{length} {name}"] for name in columns]
        print(f"{length:>14}" + "".join(f"{figure:12.2f}" for figure in figures))
    for name, bar in report["bars"].items():
        print(f"{name}: {bar['value']:.2f}, bound {bar['bound']}{'' if bar['ok'] else ': falls short'}")


def main(arguments: list[str] | None = None) -> int:
    """Print the table, or one JSON object; 1 where the bar falls short."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 256, 1024, 4096])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    import torch

    torch.set_num_threads(options.threads)
    report = measure(options)
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        show(report, options.lengths)
    return 0 if all(bar["ok"] for bar in report["bars"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
