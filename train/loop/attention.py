"""Attention of a packed row, sample by sample: it costs the sum of the samples' squares on every device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

BY_SAMPLE = "isotune_by_sample"
"""The name under which transformers finds this attention. Without `sample_lengths` it is its sdpa."""

_needs_no_mask: ContextVar[bool] = ContextVar("needs_no_mask", default=False)


@contextlib.contextmanager
def no_mask() -> Iterator[None]:
    """Within it models build no mask [tokens, tokens] for BY_SAMPLE: none is looked at."""
    token = _needs_no_mask.set(True)
    try:
        yield
    finally:
        _needs_no_mask.reset(token)


def attend_by_sample(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sample_lengths: Sequence[int] | None = None,
    sliding_window: int | None = None,
    **named: Any,
) -> tuple[torch.Tensor, None]:
    """Causal attention inside each of the samples of one row; transformers' AttentionInterface.

    query [1, heads, tokens, width], key and value [1, groups, tokens, width]; sample_lengths: tokens of each
    sample, in order. Returns [1, tokens, heads, width]. Splitting makes views, and one copy in the backward.
    """
    is_whole = sample_lengths is None or len(sample_lengths) == 1
    if is_whole and (attention_mask is not None or _window(query, sliding_window) is None):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **named
        )
    lengths = list(sample_lengths or [query.shape[2]])
    grouped = query.shape[1] != key.shape[1]
    parts = []
    for one, its_key, its_value in zip(
        *(tensor.split(lengths, 2) for tensor in (query, key, value)), strict=True
    ):
        window = _window(one, sliding_window)
        found = scaled_dot_product_attention(
            one,
            its_key,
            its_value,
            attn_mask=window,
            dropout_p=dropout,
            scale=scaling,
            is_causal=window is None,
            enable_gqa=grouped,
        )
        parts.append(found.transpose(1, 2))
    return torch.cat(parts, 1), None


def _window(query: torch.Tensor, sliding_window: int | None) -> torch.Tensor | None:
    """The mask of a sample that is longer than the sliding window, bool [tokens, tokens]."""
    length = query.shape[2]
    if sliding_window is None or length <= sliding_window:
        return None
    place = torch.arange(length, device=query.device)
    distance = place[:, None] - place[None]
    return (distance >= 0) & (distance < sliding_window)


def _mask(*arguments: Any, **named: Any) -> Any:
    return None if _needs_no_mask.get() else sdpa_mask(*arguments, **named)


AttentionInterface.register(BY_SAMPLE, attend_by_sample)
AttentionMaskInterface.register(BY_SAMPLE, _mask)
