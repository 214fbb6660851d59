"""Overlong samples made to fit: texts of users and tools lose their start, answers and frame stay whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from train.data.formats import Record
from train.data.sample import Sample, TemplateFault
from train.data.template import ChatTemplate

CUT_ROLES = ("user", "tool")


def shorten(
    template: ChatTemplate, record: Record, number: int, max_length: int
) -> tuple[Record, Sample] | None:
    """The record's sample `number` within `max_length` tokens, and the record as it was cut; None where that
    cannot be.

    The longest text is cut first, from its start, at the border of a token; one token of each stays. The
    result is rendered again, so its ids are what the template gives for the shorter texts.
    """
    sample = template.samples(record)[number]
    messages = [dict(message) for message in record.messages[: sample.turns[-1] + 1]]
    cut = replace(record, messages=messages)
    places = [at for at, message in enumerate(messages) if message["role"] in CUT_ROLES]
    excess = len(sample.input_ids) - max_length
    for at in sorted(places, key=lambda at: -len(messages[at]["content"])):
        text = messages[at]["content"]
        starts = _token_starts(template, text)
        drop = excess
        while True:
            messages[at]["content"] = text[starts[min(drop, len(starts) - 1)] :] if starts else text
            made = _rendered(template, cut, sample.turns)
            if made is None:
                return None
            excess = len(made.input_ids) - max_length
            if excess <= 0:
                return cut, made
            if drop >= len(starts) - 1:
                break  # this text is as short as it may be: the next one
            drop += excess
    return None


def _token_starts(template: ChatTemplate, text: str) -> list[int]:
    """Where in the text each of its tokens begins, in characters."""
    tokenizer: Any = template.tokenizer
    made = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return [start for start, _ in made["offset_mapping"]]


def _rendered(template: ChatTemplate, record: Record, turns: tuple[int, ...]) -> Sample | None:
    try:
        made = template.samples(record, turns)
    except TemplateFault:
        return None
    return made[0] if len(made) == 1 else None
