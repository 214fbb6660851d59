"""The checkpoint's own chat template: a conversation becomes token ids, with labels on its answers only."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from train.data.sample import IGNORED, Sample, TemplateFault
from train.data.tokenise import samples_of
from train.data.tools import unrendered
from train.data.turns import Turn, with_parsed_arguments
from train.errors import EXIT_CONFIG, UserError

if TYPE_CHECKING:
    from train.data.formats import Record

__all__ = ["IGNORED", "ChatTemplate", "Sample", "TemplateFault", "read_template"]

PROBE = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


class Tokenizer(Protocol):
    """What is used of a transformers tokenizer."""

    chat_template: Any
    eos_token_id: int | None
    all_special_ids: list[int]
    added_tokens_decoder: dict[int, Any]

    def __len__(self) -> int: ...
    def __call__(self, text: Any, **options: Any) -> Any: ...
    def apply_chat_template(self, conversation: Any, **options: Any) -> Any: ...
    def convert_ids_to_tokens(self, ids: int) -> Any: ...


@dataclass(frozen=True)
class Stop:
    """How a template ends an answer: the stop token, and what it writes after it (ChatML: a line end)."""

    token: str
    token_id: int
    tail: str


def read_template(path: Path) -> str:
    """The text of a chat template's file; UserError (exit 78) where it cannot be read or is empty."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "it is not UTF-8 text"
        raise UserError(
            f"chat_template {path}: cannot be read: {reason}", "give a jinja file", EXIT_CONFIG
        ) from None
    if not text.strip():
        raise UserError(f"chat_template {path}: is empty", "give a jinja file", EXIT_CONFIG)
    return text


class ChatTemplate:
    """Renders records with a tokenizer's chat template.

    The ids before each learned answer are exactly those that a server computes for the same messages: prompts
    and answers are tokenised apart, so no token can span their border. `thinking`: auto, on or off, the
    template's own switch. `train_on`: all assistant turns, or the last. `chat_template`: a file whose
    template takes the place of the tokenizer's, also where the tokenizer is saved. UserError (exit 78) where
    there is no template, or no switch that was asked for.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        thinking: str = "auto",
        train_on: Literal["all", "last"] = "all",
        chat_template: Path | None = None,
    ) -> None:
        if chat_template is not None:
            tokenizer.chat_template = read_template(chat_template)
        if not getattr(tokenizer, "chat_template", None):
            raise UserError(
                "the checkpoint has no chat template (tokenizer_config.json or chat_template.jinja)",
                "use the instruct checkpoint, or name a jinja file: --set chat_template=FILE",
                EXIT_CONFIG,
            )
        self.tokenizer = tokenizer
        self.place = f"chat_template {chat_template}" if chat_template else ""
        self.thinking = thinking
        self.train_on = train_on
        # What a template marks turns with. `<think>` and its like are text that a model may write: not
        # special.
        special = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
        self._control = re.compile("|".join(map(re.escape, special)) or "(?!)")  # (?!) is in no text
        if thinking != "auto" and not self.has_switch():
            raise UserError(
                f"thinking {thinking}: enable_thinking changes nothing in the chat template",
                "the checkpoint has no such switch: with thinking: auto answers are learned as written",
                EXIT_CONFIG,
            )

    def has_switch(self) -> bool:
        """Whether `enable_thinking` changes what the template writes; UserError where it refuses."""
        try:
            return any(
                self._render(messages, True, is_prompt) != self._render(messages, False, is_prompt)
                for messages, is_prompt in ((PROBE[:1], True), (PROBE, False))
            )
        except TemplateFault as fault:
            raise UserError(str(fault), "use the instruct checkpoint's chat template", EXIT_CONFIG) from None

    def thinks(self, message: Mapping[str, Any]) -> bool:
        """Whether the template's thinking switch is on before this answer."""
        has_thought = "<think>" in message["content"] or bool(message.get("reasoning_content"))
        return self.thinking == "on" or (self.thinking == "auto" and has_thought)

    def prompt(self, record: Record, index: int = -1) -> str:
        """The text that a server sends to the model before it writes the record's message `index`."""
        index %= len(record.messages)
        thinks = self.thinks(record.messages[index])
        return self._render(with_parsed_arguments(record.messages[:index]), thinks, True, record.tools)

    def turns(self, record: Record, only: Collection[int] = ()) -> list[Turn]:
        """The turns that are learned, or those at `only`.

        TemplateFault where the template does not write prompt, answer, stop token in a row.
        """
        self._refuse_control_tokens(record)
        answers = [at for at, message in enumerate(record.messages) if message["role"] == "assistant"]
        if not answers:
            raise TemplateFault("there is no assistant message: nothing to learn")
        wanted = only or (answers if self.train_on == "all" else answers[-1:])
        messages = with_parsed_arguments(record.messages)
        self._refuse_lost(messages[: max(wanted) + 1], record.tools)
        found = []
        for index in wanted:
            try:
                found.append(self._turn(messages[: index + 1], record.tools))
            except TemplateFault as fault:
                where = f"message {index + 1}: " if len(answers) > 1 else ""
                raise TemplateFault(f"{where}{fault}") from fault
        return found

    def samples(self, record: Record, only: Collection[int] = ()) -> list[Sample]:
        """The samples of one record; TemplateFault as for `turns`. `tokenise` is for many."""
        return samples_of(self, record.place, self.turns(record, only))

    def sample(self, record: Record) -> Sample:
        """The sample that holds the record's last answer; TemplateFault as for `turns`."""
        return self.samples(record)[-1]

    @cached_property
    def stop(self) -> Stop:
        """How the template ends an answer; TemplateFault where it does not by a special token."""
        answer = self._answer(PROBE, False, None)[1]
        special = {
            *self.tokenizer.all_special_ids,
            *(number for number, token in self.tokenizer.added_tokens_decoder.items() if token.special),
        }
        found = [token for token in self.ids([answer])[0] if token in special]
        if found:
            token = str(self.tokenizer.convert_ids_to_tokens(found[-1]))
            tail = answer.rpartition(token)[2]
            if not tail.strip():
                return Stop(token, found[-1], tail)
        raise TemplateFault("the chat template writes no stop token after an answer")

    def stop_token_id(self) -> int:
        """The token with which the template ends an answer; TemplateFault where it writes none."""
        return self.stop.token_id

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text; nothing is added to what it says."""
        if not texts:
            return []
        options = {"add_special_tokens": False, "return_attention_mask": False}
        return self.tokenizer(list(texts), **options)["input_ids"]

    def _turn(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None) -> Turn:
        """The turn of the last message."""
        last = messages[-1]
        prompt, answer = self._answer(messages, self.thinks(last), tools)
        end = self.stop.token + self.stop.tail
        if not answer.endswith(end):
            raise TemplateFault("the chat template writes no stop token after an answer")
        answer = answer[: len(answer) - len(self.stop.tail)]
        if not answer.removesuffix(self.stop.token).strip():
            raise TemplateFault("the assistant's answer is empty")
        return Turn(len(messages) - 1, prompt, answer)

    def _answer(
        self, messages: list[dict[str, Any]], thinks: bool, tools: list[dict[str, Any]] | None
    ) -> tuple[str, str]:
        """The prompt before the last message, and what the template writes beyond it once that is there."""
        prompt = self._render(messages[:-1], thinks, True, tools)
        whole = self._render(messages, thinks, False, tools)
        if whole.startswith(prompt):
            return prompt, whole[len(prompt) :]
        if self.thinking == "off" and "<think>" in messages[-1]["content"]:
            raise TemplateFault("the answer holds a <think> block, and thinking is off")
        raise TemplateFault("the chat template renders the conversation differently once it is answered")

    def _refuse_control_tokens(self, record: Record) -> None:
        """A control token inside a text would end or open a turn there: nobody means that in a row of
        data.
        """
        texts = [(f"{one['role']}'s text", one["content"]) for one in record.messages]
        texts += [(f"{one['role']}'s message", _plain(one)) for one in record.messages if len(one) > 2]
        texts += [("list of tools", _plain(record.tools))] if record.tools else []
        for whose, text in texts:
            if found := self._control.search(text):
                raise TemplateFault(f"the {whose} holds the control token {found.group()}")

    def _refuse_lost(self, messages: Sequence[dict[str, Any]], tools: list[dict[str, Any]] | None) -> None:
        """TemplateFault where the template leaves out tools, calls of them or a thought."""
        if not tools and all(len(message) == 2 for message in messages):
            return
        thinks = self.thinks(messages[-1])

        def render(some: Sequence[dict[str, Any]], given: list[dict[str, Any]] | None) -> str:
            return self._render(some, thinks, False, given)

        if lost := unrendered(render, list(messages), tools, render(messages, tools)):
            raise TemplateFault(lost)

    def _render(
        self,
        messages: Sequence[dict[str, Any]],
        thinks: bool,
        is_prompt: bool,
        tools: list[dict[str, Any]] | None = None,
    ) -> str:
        try:
            return self.tokenizer.apply_chat_template(
                list(messages),
                tools=tools,
                tokenize=False,
                add_generation_prompt=is_prompt,
                enable_thinking=thinks,
            )
        except Exception as fault:  # a template is a program of its own: it may raise anything
            raise TemplateFault(f"the chat template refuses the conversation: {fault}") from fault


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
