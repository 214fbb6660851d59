"""A few logits of one fixed batch, without and with the adapter: what an adapter does, in numbers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from train.errors import EXIT_TRAINING, UserError

if TYPE_CHECKING:
    import torch
    from peft import PeftModel

SEED = 20
NUM_ROWS, ROW_LENGTH = 2, 32
ROW_POSITIONS = (7, 15, 23, 31)
NUM_TOKEN_IDS = 32

# Measured on random Qwen2 of 2 and 24 layers, usual and threefold weights, each dtype and attention against
# fp32: fp32 up to 3e-6, fp16 up to 1e-2, bf16 up to 7e-2 (1e-3 and 9e-3 for 2 layers). Other weights: 1.4.
TOLERANCES = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""Per dtype of the base, the largest `difference` between logits of equal weights."""


@dataclass(frozen=True)
class Probe:
    """The batch and where to look: `input_ids` [rows, length], `positions` in each row, `token_ids` of
    the vocabulary. All of it is kept beside the figures, so that no later change here touches old adapters.
    """

    input_ids: list[list[int]]
    positions: list[int]
    token_ids: list[int]

    @property
    def largest_id(self) -> int:
        return max(*map(max, self.input_ids), *self.token_ids)


@dataclass(frozen=True)
class Fingerprint:
    """Logits at a probe's places, [rows * positions][token ids], and what they were computed in."""

    probe: Probe
    base: list[list[float]]
    adapted: list[list[float]]
    dtype: str
    device: str


def make_probe(vocab_size: int) -> Probe:
    """The probe of a vocabulary: Python's own generator, whose numbers no version changes."""
    draw = random.Random(SEED)
    return Probe(
        [[draw.randrange(vocab_size) for _ in range(ROW_LENGTH)] for _ in range(NUM_ROWS)],
        list(ROW_POSITIONS),
        [draw.randrange(vocab_size) for _ in range(NUM_TOKEN_IDS)],
    )


def probe_logits(model: Any, probe: Probe) -> torch.Tensor:
    """fp32 [rows * positions, vocabulary] on the CPU: the logits of a causal model at a probe's places.

    UserError (exit 70) where one is not finite.
    """
    import torch

    device = next(model.parameters()).device
    training = model.training
    model.eval()
    with torch.no_grad():
        ids = torch.tensor(probe.input_ids, device=device)
        logits = model(input_ids=ids, use_cache=False).logits[:, probe.positions].flatten(0, 1)
    model.train(training)
    logits = logits.float().cpu()
    if not bool(logits.isfinite().all()):
        raise UserError("the model's logits are not finite", "take precision bf16 or fp32", EXIT_TRAINING)
    return logits


@contextmanager
def without_adapter(model: PeftModel) -> Iterator[None]:
    """The base alone. PEFT's own `disable_adapter` makes a frozen adapter trainable when it ends."""
    trainable = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    try:
        with model.disable_adapter():
            yield
    finally:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(trainable[name])


def base_dtype(model: PeftModel) -> str:
    """The dtype of the base's weights in torch's word, without its prefix."""
    return str(model.get_input_embeddings().weight.dtype).removeprefix("torch.")


def take(model: PeftModel, probe: Probe) -> Fingerprint:
    """The fingerprint of a model with its adapter.

    The model inside is called, not the wrapper: a trainer may have left its autocast on the wrapper.
    """
    inside = model.get_base_model()
    with without_adapter(model):
        base = probe_logits(inside, probe)[:, probe.token_ids]
    adapted = probe_logits(inside, probe)[:, probe.token_ids]
    device = next(model.parameters()).device.type
    return Fingerprint(probe, _figures(base), _figures(adapted), base_dtype(model), device)


def _figures(logits: torch.Tensor) -> list[list[float]]:
    return [[float(f"{value:.8g}") for value in row] for row in logits.tolist()]


def difference(left: Any, right: Any, scale: Any) -> float:
    """Root mean square of `left - right`, in standard deviations of the logits `scale`.

    Not the largest: among hundreds of figures of coarse rounding one is always far off.
    """
    import torch

    spread = torch.as_tensor(scale).double().std()
    return ((torch.as_tensor(left) - torch.as_tensor(right)).double().square().mean().sqrt() / spread).item()


def percent(share: float) -> str:
    """A difference in words: percent of the logits' spread."""
    return f"{100 * share:.3g}%"


def tolerance(*dtypes: str) -> float:
    """The largest `difference` of equal models, by the coarsest of the dtypes they were computed in."""
    return max(TOLERANCES.get(dtype, max(TOLERANCES.values())) for dtype in dtypes)
