"""Whether a device computes in a precision: a product, and a block with its gradients."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn import functional

from train.probes.outcome import TOLERANCES, Outcome, distance, measure
from train.probes.reference import DTYPES, by_products, causal

HIDDEN, HEADS, KEY_HEADS, WIDE, VOCABULARY, RANK = 64, 4, 2, 160, 96, 4
ROWS, TOKENS = 2, 24
LOSS_SCALE = {"fp16": 1024.0}
"""fp16 trains under a scaled loss: its smallest normal number is 6e-5."""


def probe(precision: str, device: torch.device) -> Outcome:
    """Compare `precision` on `device` with fp32 on the CPU."""

    def distances() -> dict[str, float]:
        reference, found = _compute("fp32", torch.device("cpu")), _compute(precision, device)
        return {name: distance(found[name], wanted) for name, wanted in reference.items()}

    return measure(f"precision {precision}", TOLERANCES[precision], distances)


def _compute(precision: str, device: torch.device) -> dict[str, torch.Tensor]:
    """A product, and loss, logits and gradients of a block as a run computes it: frozen weights in the
    precision, trained ones and the loss in fp32.
    """
    dtype = DTYPES[precision]
    draw = torch.Generator().manual_seed(0)
    left, right = (torch.randn(128, 128, generator=draw).to(device, dtype) for _ in range(2))
    frozen = {name: _weight(shape, draw).to(device, dtype) for name, shape in _SHAPES.items()}
    trained = {name: _weight(shape, draw).to(device).requires_grad_() for name, shape in _TRAINED.items()}
    stream = torch.randn(ROWS, TOKENS, HIDDEN, generator=draw).to(device).requires_grad_()
    labels = torch.randint(0, VOCABULARY, (ROWS, TOKENS), generator=draw).to(device)
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        logits = _block(stream, frozen, trained, dtype).float()
        loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
    scale = LOSS_SCALE.get(precision, 1.0)
    leaves = [stream, *trained.values()]
    gradients = torch.autograd.grad(loss * scale, leaves)
    return {
        "product": left @ right,
        "loss": loss.reshape(1),
        "logits": logits,
        "gradients": torch.cat([(gradient.float() / scale).flatten() for gradient in gradients]),
    }


_SHAPES = {
    "query": (HIDDEN, HIDDEN),
    "key": (HIDDEN // HEADS * KEY_HEADS, HIDDEN),
    "value": (HIDDEN // HEADS * KEY_HEADS, HIDDEN),
    "output": (HIDDEN, HIDDEN),
    "gate": (WIDE, HIDDEN),
    "up": (WIDE, HIDDEN),
    "down": (HIDDEN, WIDE),
    "head": (VOCABULARY, HIDDEN),
}
_TRAINED = {"lower": (RANK, HIDDEN), "upper": (HIDDEN, RANK)}


def _weight(shape: tuple[int, int], draw: torch.Generator) -> torch.Tensor:
    return torch.randn(*shape, generator=draw) / math.sqrt(shape[1])


def _block(
    stream: torch.Tensor, frozen: dict[str, torch.Tensor], trained: dict[str, Any], dtype: torch.dtype
) -> torch.Tensor:
    """Qwen's block with one low-rank update, and a head: logits [rows, tokens, vocabulary]."""
    inputs = _norm(stream).to(dtype)
    query, key, value = (functional.linear(inputs, frozen[name]) for name in ("query", "key", "value"))
    update = functional.linear(functional.linear(inputs.float(), trained["lower"]), trained["upper"])
    attended = _attend(query + update.to(dtype), key, value)
    stream = stream + functional.linear(attended, frozen["output"])
    inputs = _norm(stream).to(dtype)
    gate = functional.silu(functional.linear(inputs, frozen["gate"]))
    stream = stream + functional.linear(
        gate * functional.linear(inputs, frozen["up"]).to(gate.dtype), frozen["down"]
    )
    return functional.linear(_norm(stream).to(dtype), frozen["head"])


def _norm(stream: torch.Tensor) -> torch.Tensor:
    stream = stream.float()
    return stream * torch.rsqrt(stream.pow(2).mean(-1, keepdim=True) + 1e-6)


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Causal attention by products: the attention's own probe is another one. All [rows, tokens, width]."""
    query, key, value = (
        part.unflatten(-1, (-1, HIDDEN // HEADS)).transpose(1, 2).to(value.dtype)
        for part in (query, key, value)
    )
    mask = causal(query.shape[2]).to(query.device)
    return by_products(query, key, value, mask).transpose(1, 2).flatten(2)
