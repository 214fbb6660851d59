"""The checkpoint's own chat template: a record becomes token ids, with labels on the answer only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from train.data.formats import Message, Record
from train.data.tools import unrendered
from train.errors import EXIT_CONFIG, UserError

IGNORED = -100
"""The label of a position that is not a target token (torch's cross-entropy skips it)."""


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    chat_template: Any
    eos_token_id: int | None
    all_special_ids: list[int]
    added_tokens_decoder: dict[int, Any]

    def __call__(self, text: str, *, add_special_tokens: bool) -> Any: ...
    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...


@dataclass(frozen=True)
class Sample:
    """A tokenised record.

    `input_ids`, `labels`: as long as each other; labels are IGNORED but on the answer and its stop token.
    """

    input_ids: list[int]
    labels: list[int]
    place: str

    @property
    def num_target_tokens(self) -> int:
        """Positions that are learned. The first one can never be: nothing predicts it."""
        return sum(label != IGNORED for label in self.labels[1:])


class TemplateFault(ValueError):
    """A record that the chat template cannot render as prompt plus answer."""


class ChatTemplate:
    """Renders records with a tokenizer's chat template.

    The ids of the prompt are exactly those that a server computes for the same messages: prompt and answer
    are tokenised apart, so no token can span their border. `thinking`: auto, on or off, the template's own
    switch.
    """

    def __init__(self, tokenizer: Tokenizer, thinking: str = "auto") -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise UserError(
                "the checkpoint has no chat template (tokenizer_config.json or chat_template.jinja)",
                "use the instruct checkpoint, or copy its chat_template.jinja into the model folder",
                EXIT_CONFIG,
            )
        self.tokenizer = tokenizer
        self.thinking = thinking
        # What a template marks turns with. `<think>` and its like are text that a model may write: not
        # special.
        self._control = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
        self._marks = frozenset(tokenizer.all_special_ids) | frozenset(tokenizer.added_tokens_decoder)

    def thinks(self, answer: str) -> bool:
        """Whether the template's thinking switch is on for this answer."""
        return self.thinking == "on" or (self.thinking == "auto" and "<think>" in answer)

    def prompt(self, messages: Sequence[Message], thinks: bool, tools: list[Any] | None = None) -> str:
        """The text that a server sends to the model before it answers."""
        return self._render(messages, tools, thinks, add_generation_prompt=True)

    def sample(self, record: Record) -> Sample:
        """Tokenise a record; TemplateFault where the template does not write prompt, answer, stop
        token in a row.
        """
        self._refuse_control_tokens(record)
        answer = record.messages[-1]["content"]
        thinks = self.thinks(answer)
        prompt = self.prompt(record.messages[:-1], thinks, record.tools)
        whole = self._render(record.messages, record.tools, thinks)
        render = partial(self._render, thinks=thinks)
        if lost := unrendered(render, record.messages, record.tools, whole):
            raise TemplateFault(lost)
        if not whole.startswith(prompt):
            raise TemplateFault("the chat template renders the conversation differently once it is answered")
        prompt_ids = self._ids(prompt)
        answer_ids = self._up_to_stop(self._ids(whole[len(prompt) :]))
        labels = [IGNORED] * len(prompt_ids) + answer_ids
        return Sample(prompt_ids + answer_ids, labels, record.place)

    def _refuse_control_tokens(self, record: Record) -> None:
        """A control token inside a text would end or open a turn there: nobody means that in a row of
        data.
        """
        texts = [(f"{one['role']}'s text", one["content"]) for one in record.messages]
        texts += [(f"{one['role']}'s message", _plain(one)) for one in record.messages if len(one) > 2]
        texts += [("list of tools", _plain(record.tools))] if record.tools else []
        for whose, text in texts:
            if found := [token for token in self._control if token in text]:
                raise TemplateFault(f"the {whose} holds the control token {found[0]}")

    def stop_token_id(self) -> int:
        """The token with which the template ends an answer."""
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        return self.sample(Record(messages, "the template itself")).input_ids[-1]

    def _render(
        self,
        messages: Sequence[Message],
        tools: list[Any] | None,
        thinks: bool,
        add_generation_prompt: bool = False,
    ) -> str:
        try:
            return self.tokenizer.apply_chat_template(
                list(messages),
                tools=tools,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                enable_thinking=thinks,
            )
        except Exception as fault:  # a template is a program of its own: it may raise anything
            raise TemplateFault(f"the chat template refuses the conversation: {fault}") from fault

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _up_to_stop(self, answer_ids: list[int]) -> list[int]:
        """Cut what a template writes after the stop token (ChatML: a line end): a server never
        generates it.
        """
        for position in range(len(answer_ids) - 1, -1, -1):
            if answer_ids[position] in self._marks:
                return answer_ids[: position + 1]
        raise TemplateFault("the chat template writes no stop token after an answer")


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
