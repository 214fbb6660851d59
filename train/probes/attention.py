"""Whether a device attends right: each implementation on the shapes of training and generating, forward and
backward, against products in fp32 on the CPU.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from train.probes.outcome import TOLERANCES, Outcome, distance, measure
from train.probes.reference import DTYPES, by_products, causal

HEADS, KEY_HEADS, HEAD_SIZE = 4, 2, 32
LENGTHS = (9, 5, 18)
"""Of the samples of a packed row."""
NO_FLASH = "sdpa without flash kernels"
"""torch's attention, its flash kernels off: there is a build of torch whose unmasked attention needs a wheel
that is not there, and raises instead of taking another kernel."""


def variants(attention: str) -> list[str]:
    """An implementation as it is, then what can be made of it."""
    return [attention, NO_FLASH] if attention == "sdpa" else [attention]


def use(variant: str) -> str:
    """Let this process attend so from now on; the name by which transformers knows it."""
    if variant == "eager":
        return variant
    torch.backends.cuda.enable_flash_sdp(variant != NO_FLASH)  # a switch of all device types
    return "sdpa"


def probe(variant: str, precision: str, device: torch.device) -> Outcome:
    """Compare a variant in `precision` on `device` with products in fp32 on the CPU. The process attends by
    this variant afterwards.
    """

    def distances() -> dict[str, float]:
        name = use(variant)
        figures = {}
        for case, lengths in {"unmasked": None, "masked": None, "packed": LENGTHS, "split": LENGTHS}.items():
            wanted = _compute("eager", case, lengths, "fp32", torch.device("cpu"))
            found = _compute(name, case, lengths, precision, device)
            figures[case] = max(distance(*pair) for pair in zip(found, wanted, strict=True))
        return figures

    return measure(f"attention {variant}, {precision}", TOLERANCES[precision], distances)


def _compute(
    name: str, case: str, lengths: tuple[int, ...] | None, precision: str, device: torch.device
) -> list[torch.Tensor]:
    """What one case gives, and the gradients of query, key and value."""
    draw = torch.Generator().manual_seed(1)
    rows, tokens = (1, sum(lengths)) if lengths else (2, 24)
    parts = [
        torch.randn(rows, tokens, heads, HEAD_SIZE, generator=draw)
        .to(device, DTYPES[precision])
        .requires_grad_()
        for heads in (HEADS, KEY_HEADS, KEY_HEADS)
    ]
    weights = torch.randn(rows, tokens, HEADS, HEAD_SIZE, generator=draw).to(device)
    views = [part.transpose(1, 2) for part in parts]  # as a model has them
    mask = _mask(case, tokens).to(device)
    if name == "eager":
        query, key, value = views
        found = by_products(query, key, value, mask).transpose(1, 2)
    else:
        found = _sdpa(case, views, mask, lengths)
    gradients = torch.autograd.grad((found.float() * weights).sum(), parts)
    return [found, *gradients]


def _sdpa(
    case: str, views: list[torch.Tensor], mask: torch.Tensor, lengths: tuple[int, ...] | None
) -> torch.Tensor:
    """By the functions that training calls: transformers' own, and the one that goes sample by sample."""
    from train.loop.attention import attend_by_sample

    layer: Any = SimpleNamespace(num_key_value_groups=HEADS // KEY_HEADS, is_causal=True, training=True)
    wanted = mask if case in ("masked", "packed") else None
    apart = lengths if case == "split" else None
    query, key, value = views
    return attend_by_sample(layer, query, key, value, wanted, sample_lengths=apart)[0]


def _mask(case: str, tokens: int) -> torch.Tensor:
    """Which key a query sees, bool [1 or 2, 1, tokens, tokens]."""
    seen = causal(tokens)
    if case == "masked":  # the second row is padded at its end
        padded = seen & (torch.arange(tokens) < tokens - 7)
        return torch.cat([seen, padded])
    if case in ("packed", "split"):
        sample = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
        return seen & (sample[:, None] == sample[None])
    return seen
