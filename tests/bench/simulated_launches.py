"""What a training step launches on the simulated NPU, and what these launches cost where each takes its time.

    python tests/bench/simulated_launches.py [--layers N] [--latency MICROSECONDS] [--json]

Counted on the device's own dispatch key: every kernel, copy and wait of a forward, a backward and a fused
AdamW step; views and empty memory launch nothing. `share`: what the latency is of a step's time with it;
it depends on this machine's arithmetic, the launches do not.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from adapted import SMALL, VARIANTS, make_ids, make_model

TOKENS = 64
STEPS = 5
BARS = {
    ("OFT exact", "PEFT OFT series"): 0.5,
    ("OFT exact", "PEFT LoRA"): 0.9,
    ("LoRA", "PEFT LoRA"): 0.9,
}
INSIDE = "--inside"


class Step:
    """A training step of one variant on the device; the adapter's weights move, as in a run."""

    def __init__(self, variant: str, num_layers: int) -> None:
        import torch

        sizes = {**SMALL, "num_hidden_layers": num_layers}
        self.model = make_model(variant, sizes).to("npu")
        self.ids = make_ids(sizes, TOKENS).to("npu")
        learns = [one for one in self.model.parameters() if one.requires_grad]
        self.optimizer = torch.optim.AdamW(learns, lr=1e-4, fused=True) if learns else None

    def take(self) -> None:
        self.model(input_ids=self.ids, labels=self.ids).loss.backward()
        if self.optimizer:
            self.optimizer.step()
            self.optimizer.zero_grad()


def launches(step: Step) -> int:
    """Of the second step: the first one makes what is kept."""
    from torch_npu._native import native

    step.take()
    native.reset_launches()
    step.take()
    return sum(native.launches().values())


def seconds(step: Step, latency: float) -> float:
    """The fastest of some steps."""
    from torch_npu._native import native

    native.set_latency(latency)
    taken = []
    for _ in range(STEPS):
        start = time.perf_counter()
        step.take()
        taken.append(time.perf_counter() - start)
    native.set_latency(0.0)
    return min(taken)


def measure(variant: str, num_layers: int, latency: float) -> dict[str, Any]:
    """latency: seconds of each launch; 0 measures no times."""
    step = Step(variant, num_layers)
    found: dict[str, Any] = {"launches": launches(step)}
    if latency:
        found["seconds_without_latency"] = seconds(step, 0.0)
        found["seconds"] = seconds(step, latency)
        found["share"] = found["launches"] * latency / found["seconds"]
    return found


def bars(figures: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    found = {}
    for (name, other), bound in BARS.items():
        value = figures[name]["launches"] / figures[other]["launches"]
        found[f"launches: {name} / {other}"] = {"value": value, "bound": bound, "ok": value <= bound}
    return found


def on_the_device(layers: list[int], latency: float) -> dict[int, dict[str, dict[str, Any]]]:
    """Number of layers -> variant -> figures, measured in one process that has the simulated NPU.

    latency: in microseconds.
    """
    from tests.simnpu import compiled

    environment = compiled.environment(compiled.build())
    wanted = [f"{INSIDE}={count}" for count in layers]
    command = [sys.executable, str(Path(__file__).resolve()), *wanted, f"--latency={latency}"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return {int(count): figures for count, figures in json.loads(done.stdout).items()}


def main(arguments: list[str]) -> int:
    """Print the table, or one JSON object; 1 where a bar falls short."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=SMALL["num_hidden_layers"])
    parser.add_argument("--latency", type=float, default=20.0, help="microseconds; 0: count alone")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(INSIDE, type=int, action="append", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.inside:
        latency = options.latency * 1e-6
        found = {
            count: {variant: measure(variant, count, latency) for variant in VARIANTS}
            for count in options.inside
        }
        print(json.dumps(found), flush=True)
        os._exit(0)  # torch's threads for a device of an extension may outlive what they need, and abort
    figures = on_the_device([options.layers], options.latency)[options.layers]
    held = bars(figures)
    if options.json:
        print(
            json.dumps({"latency_microseconds": options.latency, "figures": figures, "bars": held}, indent=2)
        )
    else:
        print("\n".join(table(figures)))
        for name, bar in held.items():
            word = "" if bar["ok"] else ": falls short"
            print(f"{name:45} {bar['value']:.3f}, at most {bar['bound']}{word}")
    return 0 if all(bar["ok"] for bar in held.values()) else 1


def table(figures: dict[str, dict[str, Any]]) -> list[str]:
    lines = [f"{'':16} {'launches':>9} {'s/step':>8} {'with latency':>13} {'share':>6}"]
    for name, found in figures.items():
        times = ""
        if "seconds" in found:
            times = f" {found['seconds_without_latency']:8.3f} {found['seconds']:13.3f} {found['share']:6.1%}"
        lines.append(f"{name:16} {found['launches']:9}{times}")
    return lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
