"""Attention by products: the reference of the probes, on the CPU in fp32."""

from __future__ import annotations

import math

import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def causal(tokens: int) -> torch.Tensor:
    """Each token sees itself and those before it, bool [1, 1, tokens, tokens]."""
    return torch.ones(1, 1, tokens, tokens, dtype=torch.bool).tril()


def by_products(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Attention as transformers' eager computes it: [rows, heads, tokens, size], softmax in fp32."""
    groups = query.shape[1] // key.shape[1]
    key, value = (part.repeat_interleave(groups, 1) for part in (key, value))
    scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
    least = torch.finfo(scores.dtype).min
    scores = scores + torch.zeros_like(mask, dtype=scores.dtype).masked_fill(~mask, least)
    return torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype) @ value
