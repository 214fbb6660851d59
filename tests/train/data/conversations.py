"""Conversations as records, and what a server would compute for each of their turns."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import Any

from train.data.formats import Record
from train.data.template import IGNORED, ChatTemplate, Sample

TEMPLATES = Path(__file__).parent / "templates"

TOOL = {
    "type": "function",
    "function": {
        "name": "measure",
        "description": "Measures a body.",
        "parameters": {"type": "object", "properties": {"body": {"type": "string"}}},
    },
}


def record(*turns: tuple[str, str] | dict[str, Any], tools: Any = None) -> Record:
    """A record of (role, content) pairs and ready messages."""
    messages = [turn if isinstance(turn, dict) else {"role": turn[0], "content": turn[1]} for turn in turns]
    return Record(messages, "f:1", tools)


def chat(*texts: str) -> Record:
    """User and assistant in turn."""
    return record(*((("user", "assistant")[number % 2], text) for number, text in enumerate(texts)))


def call(arguments: Any, content: str = "") -> dict[str, Any]:
    """An assistant's message that calls the tool."""
    function = {"name": "measure", "arguments": arguments}
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
    }


def spans(sample: Sample) -> list[tuple[int, int]]:
    """(start, end) of each labelled stretch."""
    found, position = [], 0
    for is_learned, stretch in groupby(sample.labels, key=lambda label: label != IGNORED):
        length = len(list(stretch))
        if is_learned:
            found.append((position, position + length))
        position += length
    return found


def learned(tokenizer: Any, sample: Sample) -> list[str]:
    """The text of each labelled stretch."""
    return [tokenizer.decode(list(sample.input_ids[start:end])) for start, end in spans(sample)]


def require_serving_prompts(template: ChatTemplate, conversation: Record) -> list[Sample]:
    """The samples of a conversation, every turn of which begins where a server's prompt ends."""
    samples = template.samples(conversation)
    for sample in samples:
        assert len(spans(sample)) == len(sample.turns)
        for index, (start, end) in zip(sample.turns, spans(sample), strict=True):
            served = template.tokenizer.apply_chat_template(
                conversation.messages[:index],
                tools=conversation.tools,
                add_generation_prompt=True,
                enable_thinking=template.thinks(conversation.messages[index]),
                return_dict=False,
            )
            assert list(sample.input_ids[:start]) == served
            assert sample.input_ids[end - 1] == sample.labels[end - 1] == template.stop_token_id()
            assert sample.labels[start:end] == sample.input_ids[start:end]
    return samples
