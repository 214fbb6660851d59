"""The turns of a conversation that are learned, as text, and which of them one sequence can hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Turn:
    """An assistant message that is learned.

    index: among the record's messages. prompt: what a server sends before it. answer: what the model is to
    write, its stop token included, and nothing of what a template writes after that.
    """

    index: int
    prompt: str
    answer: str


def chains(turns: Sequence[Turn]) -> list[list[Turn]]:
    """Runs of turns that one sequence can hold: the prompt of each begins with all that went before.

    A template that rewrites history (Qwen3 takes earlier thoughts out of it) breaks the run: what the model
    sees at serving time is then another text, and the turn gets a sequence of its own.
    """
    found: list[list[Turn]] = []
    for turn in turns:
        if found and turn.prompt.startswith(found[-1][-1].prompt + found[-1][-1].answer):
            found[-1].append(turn)
        else:
            found.append([turn])
    return found


def pieces(chain: Sequence[Turn]) -> list[str]:
    """The text of a chain, cut where answers begin and end: prompt, answer, what follows, answer, ..."""
    parts = []
    done = 0
    for turn in chain:
        parts += [turn.prompt[done:], turn.answer]
        done = len(turn.prompt) + len(turn.answer)
    return parts


def with_parsed_arguments(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages whose tool calls have their arguments as objects.

    APIs send them as JSON text; servers parse it before they render, and some templates would quote it twice.
    """
    return [_parsed(message) if message.get("tool_calls") else message for message in messages]


def _parsed(message: dict[str, Any]) -> dict[str, Any]:
    calls = []
    for call in message["tool_calls"]:
        function = call.get("function", call)
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            try:
                value = json.loads(arguments)
            except ValueError:
                value = arguments
            function = {**function, "arguments": value if isinstance(value, dict) else arguments}
        calls.append({**call, "function": function} if "function" in call else function)
    return {**message, "tool_calls": calls}
