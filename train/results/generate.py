"""Answers to a few prompts, greedy, so that the same weights give the same text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from train.data.formats import Record
from train.data.template import ChatTemplate

if TYPE_CHECKING:
    import torch


def choose_records(records: Sequence[Record], count: int) -> list[Record]:
    """`count` records spread evenly over the file, the first one among them."""
    count = min(count, len(records))
    return [records[index * len(records) // count] for index in range(count)]


def answer(
    model: torch.nn.Module,
    template: ChatTemplate,
    record: Record,
    stop_token_ids: list[int],
    max_new_tokens: int,
) -> str:
    """The model's greedy answer to a record's prompt, without special tokens; it never sees the
    record's answer.
    """
    import torch

    tokenizer: Any = template.tokenizer
    thinks = template.thinks(record.messages[-1]["content"])
    prompt = template.prompt(record.messages[:-1], thinks, record.tools)
    device = next(model.parameters()).device
    ids = torch.tensor([tokenizer(prompt, add_special_tokens=False)["input_ids"]], device=device)
    training = model.training
    model.eval()
    with torch.no_grad():
        made = model.generate(  # type: ignore[operator]  # torch's Module types hide the method
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            num_beams=1,
            eos_token_id=stop_token_ids,
            pad_token_id=stop_token_ids[0],
            use_cache=True,
        )
    model.train(training)
    return tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True)
