"""How a job grows with its nodes: traffic, checkpoints and memory, computed from the shapes of models.

    python tests/bench/scale.py [--json] [--nodes 1,2,4,8] [--devices 8] [--gbit 100] [--tflops 100]

Bytes are exact: adapter gradients alone are exchanged, in fp32, and tests/bench/test_scale.py measures them
on local processes. Seconds are bytes and operations over two speeds that are given: assumptions, no
measurements, and an upper bound, for here none of the exchange is hidden behind the backward pass.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Shape:
    """The sizes of a Qwen2 model, as its config.json names them."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    vocab_size: int
    tie_word_embeddings: bool

    def projections(self) -> list[tuple[int, int]]:
        """Return (inputs, outputs) of the seven projections of a layer."""
        hidden, inner = self.hidden_size, self.intermediate_size
        narrow = hidden // self.num_attention_heads * self.num_key_value_heads
        attention = [(hidden, hidden), (hidden, narrow), (hidden, narrow), (hidden, hidden)]
        return [*attention, (hidden, inner), (hidden, inner), (inner, hidden)]

    def base_parameters(self) -> int:
        """Return how many numbers the frozen model has."""
        narrow = self.hidden_size // self.num_attention_heads * self.num_key_value_heads
        weights = sum(inputs * outputs for inputs, outputs in self.projections())
        layer = weights + self.hidden_size + 2 * narrow + 2 * self.hidden_size  # biases of q, k, v; two norms
        tables = 1 if self.tie_word_embeddings else 2
        embeddings = tables * self.vocab_size * self.hidden_size
        return self.num_hidden_layers * layer + embeddings + self.hidden_size

    def adapter_parameters(self, adapter: str, size: int) -> int:
        """Return how many numbers are trained: LoRA of rank `size`, or OFT of blocks of `size` inputs."""
        if adapter == "lora":
            layer = sum(size * (inputs + outputs) for inputs, outputs in self.projections())
        else:
            layer = sum(inputs // size * (size * (size - 1) // 2) for inputs, _ in self.projections())
        return self.num_hidden_layers * layer


# From the config.json of each model.
SHAPES = {
    "Qwen2.5-0.5B": Shape(896, 4864, 24, 14, 2, 151_936, True),
    "Qwen2.5-7B": Shape(3584, 18_944, 28, 28, 4, 152_064, False),
    "Qwen2.5-32B": Shape(5120, 27_648, 64, 40, 8, 152_064, False),
}
SIZES = {"lora": 8, "oft": 32}  # what a recipe takes by default
FP32, BF16 = 4, 2
# Per trained number: the fp32 master and the two moments of AdamW; in memory its gradient too.
CHECKPOINT_BYTES, TRAINED_BYTES = 3 * FP32, 4 * FP32


def ring_bytes(size: int, processes: int) -> int:
    """Return the bytes that each process sends to sum `size` bytes over all: twice around the ring."""
    return math.ceil(2 * (processes - 1) / processes * size)


@dataclass(frozen=True)
class Figures:
    """Of one model, adapter and number of nodes. Bytes are per process; seconds are per step."""

    model: str
    adapter: str
    nodes: int
    processes: int
    trained: int
    ddp_sent_bytes: int
    ddp_seconds: float
    fsdp_sent_bytes: int
    fsdp_seconds: float
    compute_seconds: float
    checkpoint_bytes: int
    adapter_bytes: int
    ddp_memory_bytes: int
    fsdp_memory_bytes: int


@dataclass(frozen=True)
class Speeds:
    """`gbit`: between nodes, per card; `tflops`: reached by a card; `tokens`: per card and step."""

    gbit: float
    tflops: float
    tokens: int


def figures(model: str, shape: Shape, adapter: str, nodes: int, devices: int, speeds: Speeds) -> Figures:
    """Return what a step of such a job sends, keeps and needs."""
    processes, base = nodes * devices, shape.base_parameters()
    trained = shape.adapter_parameters(adapter, SIZES[adapter])
    ddp = ring_bytes(trained * FP32, processes)
    # FSDP gathers the frozen weights for the forward and again for the backward pass; gradients as before.
    gathered = 2 * math.ceil((processes - 1) / processes * base * BF16)
    fsdp = gathered + ddp
    # Forward, and the gradient of what goes in: 2 operations each per weight and token.
    compute = 4 * base * speeds.tokens / (speeds.tflops * 1e12)
    wire = speeds.gbit * 1e9 / 8
    return Figures(
        model=model,
        adapter=adapter,
        nodes=nodes,
        processes=processes,
        trained=trained,
        ddp_sent_bytes=ddp,
        ddp_seconds=compute + ddp / wire,
        fsdp_sent_bytes=fsdp,
        fsdp_seconds=compute + fsdp / wire,
        compute_seconds=compute,
        checkpoint_bytes=trained * CHECKPOINT_BYTES,
        adapter_bytes=trained * FP32,
        ddp_memory_bytes=base * BF16 + trained * TRAINED_BYTES,
        fsdp_memory_bytes=math.ceil((base * BF16 + trained * TRAINED_BYTES) / processes),
    )


def table(rows: list[Figures], card_bytes: float) -> str:
    """Return the figures as text; `card_bytes` is the memory of a card, for the advice."""
    head = ["model", "adapter", "nodes", "cards", "trained", "DDP sends", "DDP s", "FSDP sends", "FSDP s"]
    head += ["checkpoint", "DDP holds", "FSDP holds", "use"]
    lines = [head]
    for row in rows:
        lines.append(
            [
                *(row.model, row.adapter, str(row.nodes), str(row.processes), f"{row.trained / 1e6:.1f} M"),
                *(_mib(row.ddp_sent_bytes), f"{row.ddp_seconds:.3f}"),
                *(_mib(row.fsdp_sent_bytes), f"{row.fsdp_seconds:.3f}", _mib(row.checkpoint_bytes)),
                *(_mib(row.ddp_memory_bytes), _mib(row.fsdp_memory_bytes), advice(row, card_bytes)),
            ]
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines
    )


def advice(row: Figures, card_bytes: float) -> str:
    """Return DDP where a card holds the model and half of it is left for activations, else FSDP."""
    return "DDP" if row.ddp_memory_bytes <= card_bytes / 2 else "FSDP"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def bars(rows: list[Figures]) -> dict[str, dict[str, Any]]:
    """Return what has to hold: nodes multiply neither checkpoints nor, beyond twice, what DDP sends."""
    largest = max(row.ddp_sent_bytes / row.adapter_bytes for row in rows)
    found = {"DDP sends, of the adapter's bytes": {"value": largest, "bound": 2.0, "ok": largest < 2}}
    for key in sorted({(row.model, row.adapter) for row in rows}):
        own = {row.checkpoint_bytes for row in rows if (row.model, row.adapter) == key}
        found[f"checkpoints of {' '.join(key)}"] = {"value": len(own), "bound": 1, "ok": len(own) == 1}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--nodes", default="1,2,4,8", help="numbers of nodes")
    parser.add_argument("--devices", type=int, default=8, help="cards of a node")
    parser.add_argument("--card-gib", type=float, default=64, help="memory of a card, for the advice")
    parser.add_argument("--gbit", type=float, default=100, help="Gbit/s between nodes per card: assumed")
    parser.add_argument("--tflops", type=float, default=100, help="TFLOP/s that a card reaches: assumed")
    parser.add_argument("--tokens", type=int, default=8192, help="tokens per card and step")
    options = parser.parse_args()
    speeds = Speeds(options.gbit, options.tflops, options.tokens)
    rows = [
        figures(model, shape, adapter, int(nodes), options.devices, speeds)
        for model, shape in SHAPES.items()
        for adapter in SIZES
        for nodes in options.nodes.split(",")
    ]
    found = bars(rows)
    if options.json:
        print(
            json.dumps(
                {"speeds": asdict(speeds), "rows": [asdict(row) for row in rows], "bars": found}, indent=2
            )
        )
    else:
        print(table(rows, options.card_gib * 2**30))
        print(
            f"seconds assume {options.gbit:g} Gbit/s per card, {options.tflops:g} TFLOP/s,"
            f" {options.tokens} tokens per card"
        )
    return 0 if all(bar["ok"] for bar in found.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
