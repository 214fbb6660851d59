"""Whether a checkpoint can write the token that ends an answer: base models never learned the chat's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from train.data.template import ChatTemplate
from train.errors import EXIT_CONFIG, UserError

if TYPE_CHECKING:
    import torch

EQUAL = 0.05
"""Relative distance below which two rows are the same. Rows that a training left alone keep one common value,
or drift together; trained rows of two tokens lie more than their own length apart."""
NEAR_ZERO = 0.05
"""Of the median row's norm."""
SAMPLED_ROWS = 1024


def check_stop_token(model: Any, template: ChatTemplate, policy: str, place: str) -> list[str]:
    """Lines to say about an untrained stop token; none where it is sound.

    An adapter leaves the rows of lm_head as they are, so a token whose row was never trained cannot be
    learned: answers would not end (QwenLM/Qwen3#1064). UserError (exit 78) then, unless `policy` is allow.
    """
    reason = untrained(model.get_output_embeddings().weight, template)
    if reason is None:
        return []
    stop = template.stop
    message = f"{place}: the stop token {stop.token} (id {stop.token_id}) was never trained: {reason}"
    if policy == "allow":
        return [f"warning: {message}; answers may not end"]
    own_end = getattr(template.tokenizer, "eos_token", None)
    native = f", or a chat_template file that ends answers with {own_end}" if own_end != stop.token else ""
    raise UserError(
        message,
        f"use the instruct checkpoint{native}; --set untrained_stop_token=allow goes on all the same: "
        "an adapter cannot mend the row, answers may not end",
        EXIT_CONFIG,
    )


def untrained(weight: torch.Tensor, template: ChatTemplate) -> str | None:
    """Why the stop token's row of `weight` [vocabulary, hidden] is one that no training has touched, or None.

    It is compared with the rows of the other special tokens, and with those beyond the tokenizer's ids, which
    nothing can have trained. Quantised weights are not looked at.
    """
    if weight.dim() != 2 or not weight.is_floating_point():
        return None
    stop = template.stop
    rows = weight.detach()
    own = rows[stop.token_id].float()
    norm = own.norm()
    typical = rows[:: max(1, len(rows) // SAMPLED_ROWS)].float().norm(dim=1).median()
    if norm <= NEAR_ZERO * typical:
        return f"its row of lm_head is near zero (norm {norm:.2g}, the median row has {typical:.2g})"
    names = {number: str(token) for number, token in template.tokenizer.added_tokens_decoder.items()}
    size = len(template.tokenizer)
    special = [number for number, token in template.tokenizer.added_tokens_decoder.items() if token.special]
    others = [number for number in (*special, *range(size, len(rows))) if number != stop.token_id]
    others = [number for number in others if number < len(rows)]
    if not others:
        return None
    distances = (rows[others].float() - own).norm(dim=1) / norm
    nearest = int(distances.argmin())
    if distances[nearest] > EQUAL:
        return None
    other = names.get(others[nearest], f"id {others[nearest]}, which no text has")
    return f"its row of lm_head equals that of {other} (relative distance {distances[nearest]:.2g})"
