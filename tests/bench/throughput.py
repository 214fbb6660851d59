"""Fine-tuning throughput and peak memory against other trainers, on the same checkpoint and rows.

    python tests/bench/throughput.py [--rows N] [--rounds N] [--threads N] [--peers FOLDER]
        [--contenders NAME ...] [--clock wall|cpu] [--data-rows N] [--limit SECONDS] [--runs FILE] [--json]

ISOTUNE_TEST_QWEN3 names a folder with the Qwen3 tokenizer. Each contender trains one epoch in a process of
its own, in every round once, in another order each time; figures are medians. `--peers` is where TRL and
LLaMA-Factory have, or get, environments of their own; without it they are skipped. On a busy machine
`--clock cpu --threads 1` counts each process's own seconds: ratios then hold, rates do not. A contender that
trains longer than `--limit` is stopped: its seconds are then at least those, its memory at least what it had.
`--runs` keeps each run as soon as it ends: what the file has is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import peers
from contender import CONTENDERS
from workload import useful_operations, write_model, write_rows

# Name of the bar -> whose figure, against whose, which, and the bound: a floor of speed, a ceiling of memory.
BARS = {
    "tokens/s of LLaMA-Factory's default": ("isotune", "LLaMA-Factory", "seconds", 2.2),
    "tokens/s of TRL's default": ("isotune", "TRL", "seconds", 3.5),
    "tokens/s of LLaMA-Factory's best": ("isotune", "LLaMA-Factory, best", "seconds", 1.3),
    "tokens/s of TRL's best": ("isotune", "TRL, best", "seconds", 1.3),
    "memory of LLaMA-Factory's default": ("isotune", "LLaMA-Factory", "peak_memory_bytes", 0.75),
    "leanest memory of TRL's leanest": (
        "isotune, leanest",
        "TRL, leanest",
        "peak_memory_bytes",
        1.0,
    ),
}
BENCH = Path(__file__).resolve().parent


def measure(options: argparse.Namespace, place: Path) -> dict[str, Any]:
    """All figures of all contenders, and the bars that can be judged."""
    tokenizer = Path(os.environ["ISOTUNE_TEST_QWEN3"])
    write_model(place / "model", tokenizer)
    rows = write_rows(place, tokenizer, options.rows)
    pythons = {name: peers.python_of(name, options.peers) for name in options.contenders}
    skipped = [name for name, python in pythons.items() if python is None]
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in pythons if name not in skipped}
    order = list(taken)
    kept = Kept(options.runs, {name: getattr(options, name) for name in ("rows", "threads")})
    for number in range(options.rounds):
        random.Random(number).shuffle(order)
        kept.take(number, "matmul", lambda: {"rate": matmul_rate(options.threads, options.clock)})
        for name in order:
            job = partial(run, str(pythons[name]), name, place, options)
            taken[name].append(kept.take(number, name, job))
    rates = [kept.found[number, "matmul"]["rate"] for number in range(options.rounds)]
    figures = {name: in_words(results, rows, options.clock) for name, results in taken.items()}
    share = useful_operations(rows) / statistics.median(rates)
    for found in figures.values():
        found["share_of_matmul_rate"] = share / found["seconds"]
    settings = {name: CONTENDERS[name][1] for name in figures}
    report = {
        "clock": options.clock,
        "rows": rows,
        "matmul_rate": statistics.median(rates),
        "figures": figures,
        "settings": settings,
    }
    if options.data_rows:
        report["data"] = data_cost(place, options.data_rows)
    return report | {"skipped": skipped, "load": list(os.getloadavg()), "bars": judge(figures)}


class Kept:
    """The runs of this benchmark: each is told and, where there is a file, kept at once."""

    def __init__(self, path: Path | None, kind: dict[str, int]) -> None:
        self.path, self.kind = path, kind
        self.found: dict[tuple[int, str], dict[str, float]] = {}
        for line in path.read_text("utf-8").splitlines() if path and path.exists() else []:
            said = json.loads(line)
            if said["kind"] == kind:
                self.found[said["round"], said["name"]] = said["figures"]

    def take(self, number: int, name: str, job: Callable[[], dict[str, float]]) -> dict[str, float]:
        """The figures of a run: those kept, else those of the job."""
        if (number, name) not in self.found:
            self.found[number, name] = job()
            line = {"kind": self.kind, "round": number, "name": name, "figures": self.found[number, name]}
            print(json.dumps(line), file=sys.stderr, flush=True)
            if self.path:
                with self.path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
        return self.found[number, name]


def run(python: str, name: str, place: Path, options: argparse.Namespace) -> dict[str, float]:
    """One contender's epoch in a new process; what it says on stderr is shown where it fails."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "BENCH_STARTED": str(time.time())}
    environment |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment |= {"HF_HOME": str(place / "hub"), "DISABLE_VERSION_CHECK": "1"}
    environment["PYTHONPATH"] = str(BENCH.parent.parent) if python == sys.executable else ""
    command = [python, str(BENCH / "contender.py"), name, str(place), str(options.threads)]
    command += [str(options.limit)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=place, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{name}: exit {done.returncode}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def in_words(results: list[dict[str, float]], rows: dict[str, int], clock: str) -> dict[str, float]:
    """The medians over the rounds. Tokens are those of the rows, without padding, the same for everyone."""
    found = {name: statistics.median(result[name] for result in results) for name in results[0]}
    found["seconds"] = found[clock]
    rates = {name: rows[f"num_{name}"] / found["seconds"] for name in ("target_tokens", "tokens")}
    return found | {f"{name}_per_second": value for name, value in rates.items()}


def judge(figures: dict[str, dict[str, float]]) -> dict[str, dict[str, Any]]:
    """The bars whose contenders ran. A peer that was stopped makes its figure a bound that counts for it."""
    bars = {}
    for title, (mine, other, figure, bound) in BARS.items():
        if mine not in figures or other not in figures or figures[mine].get("stopped"):
            continue
        ratio = figures[mine][figure] / figures[other][figure]
        value = 1 / ratio if figure == "seconds" else ratio
        bars[title] = {"value": value, "bound": bound, "ok": _holds(figure, value, bound)}
    return bars


def _holds(figure: str, value: float, bound: float) -> bool:
    return value >= bound if figure == "seconds" else value <= bound


def matmul_rate(threads: int, clock: str) -> float:
    """Floating-point operations per second of fp32 products of the model's widest layer."""
    import torch

    torch.set_num_threads(threads)
    left, right = torch.randn(1440, 896), torch.randn(4864, 896)
    left @ right.T
    now = {"wall": time.perf_counter, "cpu": time.process_time}[clock]
    started = now()
    for _ in range(20):
        left @ right.T
    return 20 * 2 * left.numel() * len(right) / (now() - started)


DATA_COST = """
import json, sys, time
from pathlib import Path
from contender import peak_memory_bytes
from train.data.samples import Policies, load_samples
from train.data.template import ChatTemplate
from train.loop.model import load_tokenizer
template = ChatTemplate(load_tokenizer(Path(sys.argv[1])))
started = time.perf_counter()
load_samples(Path(sys.argv[2]), template, Policies(2048, "drop"))
seconds = time.perf_counter() - started
print(json.dumps({"seconds": seconds, "peak_memory_bytes": peak_memory_bytes()}))
"""


def data_cost(place: Path, count: int) -> dict[str, float]:
    """Seconds and peak memory of reading, checking and tokenising so many short rows."""
    path = place / "many.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            row = {"instruction": f"What is {number} plus {number}?", "output": f"It is {2 * number}."}
            file.write(json.dumps(row) + "\n")
    command = [sys.executable, "-c", DATA_COST, str(place / "model"), str(path)]
    environment = {**os.environ, "PYTHONPATH": f"{BENCH.parent.parent}:{BENCH}"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    return {"num_rows": count, **json.loads(done.stdout)}


def show(report: dict[str, Any]) -> None:
    """The figures as a table."""
    rows = report["rows"]
    print(
        f"{rows['num_rows']} rows, {rows['num_tokens']} tokens, {rows['num_target_tokens']} of them targets, "
        f"longest {rows['longest']}; matmul {report['matmul_rate'] / 1e9:.0f} GFLOP/s; "
        f"{report['clock']} seconds; load {report['load'][0]:.1f}"
    )
    print(f"{'':24}{'s':>8}{'target/s':>10}{'tokens/s':>10}{'peak GB':>9}{'1st step':>10}{'of matmul':>11}")
    for name, found in report["figures"].items():
        title = name + (" (stopped)" if found["stopped"] else "")
        print(
            f"{title:24}{found['seconds']:8.1f}{found['target_tokens_per_second']:10.1f}"
            f"{found['tokens_per_second']:10.1f}{found['peak_memory_bytes'] / 1e9:9.2f}"
            f"{found['first_step']:9.1f}s{found['share_of_matmul_rate']:11.0%}"
        )
    for name, settings in report["settings"].items():
        print(f"{name}: {settings or 'defaults'}")
    for name in report["skipped"]:
        print(f"{name}: skipped: --peers names no folder for its environment")
    if data := report.get("data"):
        memory = data["peak_memory_bytes"] / 1e9
        print(f"{data['num_rows']} short rows: {data['seconds']:.1f} s, {memory:.2f} GB")
    for name, bar in report["bars"].items():
        print(f"{name:40} {bar['value']:.2f}, bound {bar['bound']}{'' if bar['ok'] else ': falls short'}")


def main(arguments: list[str] | None = None) -> int:
    """Print the table, or one JSON object; 1 where a bar falls short."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=160)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--peers", type=Path, help="folder with the peers' environments; made where missing")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    parser.add_argument("--data-rows", type=int, default=100_000, help="0: without the cost of data")
    parser.add_argument("--limit", type=float, default=3600, help="seconds of training, then it is stopped")
    parser.add_argument("--runs", type=Path, metavar="FILE", help="keeps runs, and has those of before")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        report = measure(options, Path(folder))
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        show(report)
    return 0 if all(bar["ok"] for bar in report["bars"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
