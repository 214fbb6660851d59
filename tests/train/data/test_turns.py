"""Conversations of several turns: before each learned answer stands what a server would send."""

from __future__ import annotations

import random
from typing import Any

import pytest
from conversations import (
    TEMPLATES,
    TOOL,
    call,
    chat,
    learned,
    record,
    require_serving_prompts,
    spans,
)

from train.data.template import ChatTemplate, TemplateFault
from train.data.tokenise import tokenise

THOUGHT = "<think>\nweigh it\n</think>\n\n2 kg"
LETTERS = [
    "a",
    "b ",
    " c",
    "\n",
    "\n\n",
    "\n ",
    "  ",
    "é",
    "e\u0301",
    "\u0301",
    "量",
    "7",
    "12",
    "'s",
    ".",
    "<",
    "\t",
]


def test_one_sequence_holds_all_turns_where_the_template_leaves_history_as_it_was(tokenizer: Any) -> None:
    (sample,) = require_serving_prompts(ChatTemplate(tokenizer), chat("q", "one", "r", "two", "s", "three"))
    assert learned(tokenizer, sample) == [f"{word}<|im_end|>" for word in ("one", "two", "three")]
    assert sample.turns == (1, 3, 5)


def test_a_conversation_is_split_where_the_template_rewrites_history(qwen3: Any) -> None:
    """Qwen3 puts an empty thought before the answer that is due, and into no answer of the past."""
    samples = require_serving_prompts(ChatTemplate(qwen3), chat("q", "one", "r", "two"))
    assert [sample.turns for sample in samples] == [(1,), (3,)]
    assert [learned(qwen3, sample) for sample in samples] == [["one<|im_end|>"], ["two<|im_end|>"]]
    assert "<think>" in qwen3.decode(list(samples[1].input_ids))
    assert qwen3.decode(list(samples[1].input_ids)).count("<think>") == 1


def test_thoughts_are_learned_in_their_own_turn_and_gone_from_later_ones(qwen3: Any) -> None:
    samples = require_serving_prompts(ChatTemplate(qwen3), chat("q", THOUGHT, "r", "two", "s", THOUGHT))
    assert [learned(qwen3, sample) for sample in samples] == [
        [f"{THOUGHT}<|im_end|>"],
        ["two<|im_end|>"],
        [f"{THOUGHT}<|im_end|>"],
    ]
    assert "weigh it" not in qwen3.decode(list(samples[1].input_ids))


def test_thoughts_between_tool_calls_stay_so_one_sequence_holds_them(qwen3: Any) -> None:
    conversation = record(
        ("system", "be exact"),
        ("user", "how heavy?"),
        call({"body": "stone"}, "<think>\nuse the tool\n</think>\n\n"),
        ("tool", "2 kg"),
        ("assistant", THOUGHT),
        tools=[TOOL],
    )
    (sample,) = require_serving_prompts(ChatTemplate(qwen3), conversation)
    first, second = learned(qwen3, sample)
    assert first == (
        "<think>\nuse the tool\n</think>\n\n<tool_call>\n"
        '{"name": "measure", "arguments": {"body": "stone"}}\n</tool_call><|im_end|>'
    )
    assert second == f"{THOUGHT}<|im_end|>"
    assert '"description": "Measures a body."' in qwen3.decode(list(sample.input_ids[: spans(sample)[0][0]]))


def test_a_call_without_content_is_rendered_by_the_template_and_never_as_none(fresh_qwen3: Any) -> None:
    conversation = record(
        ("user", "how heavy?"), call('{"body": "stone"}'), ("tool", "2 kg"), ("assistant", "2")
    )
    for path in (None, TEMPLATES / "qwen2_5.jinja"):
        template = ChatTemplate(fresh_qwen3, chat_template=path)
        samples = require_serving_prompts_of_parsed(template, conversation)
        text = "".join(fresh_qwen3.decode(list(sample.input_ids)) for sample in samples)
        assert "None" not in text
        assert '"arguments": {"body": "stone"}' in text  # JSON text is not quoted a second time


def require_serving_prompts_of_parsed(template: ChatTemplate, conversation: Any) -> Any:
    """A server parses arguments before it renders them: compare with such messages."""
    parsed = [
        call({"body": "stone"}) if message.get("tool_calls") else message for message in conversation.messages
    ]
    expected = require_serving_prompts(template, record(*parsed))
    assert template.samples(conversation) == expected
    return expected


def test_a_token_across_the_border_of_an_earlier_answer_splits_the_conversation(fresh_qwen3: Any) -> None:
    """`assistant\\n` and `\\n\\nfirst` are one text to a server later: its line ends become one token."""
    template = ChatTemplate(fresh_qwen3, chat_template=TEMPLATES / "qwen2.jinja")
    assert len(require_serving_prompts(template, chat("q", "first", "r", "two"))) == 1
    assert len(require_serving_prompts(template, chat("q", "\n\nfirst", "r", "two"))) == 2


@pytest.mark.parametrize("name", ["qwen2.jinja", "qwen2_5.jinja", None])
def test_any_text_gives_the_prompts_of_a_server(fresh_qwen3: Any, name: str | None) -> None:
    template = ChatTemplate(fresh_qwen3, chat_template=TEMPLATES / name if name else None)
    draw = random.Random(4)
    for _ in range(40):
        texts = ["".join(draw.choices(LETTERS, k=draw.randint(1, 6))) + "x" for _ in range(6)]
        found = require_serving_prompts(template, chat(*texts))
        assert sorted(turn for sample in found for turn in sample.turns) == [1, 3, 5]


def test_only_the_last_turn_is_learned_where_asked(qwen3: Any) -> None:
    (sample,) = ChatTemplate(qwen3, train_on="last").samples(chat("q", "one", "r", "two"))
    assert (sample.turns, learned(qwen3, sample)) == ((3,), ["two<|im_end|>"])


def test_text_after_the_last_answer_is_no_part_of_a_sample(tokenizer: Any) -> None:
    (sample,) = ChatTemplate(tokenizer).samples(chat("q", "one", "unanswered"))
    assert "unanswered" not in tokenizer.decode(list(sample.input_ids))


@pytest.mark.parametrize(
    ("conversation", "reason"),
    [
        (record(("user", "q")), "no assistant message"),
        (chat("q", "one", "r", " "), "message 4: the assistant's answer is empty"),
        (chat("q", "one", "r", "two<|im_end|>"), "the assistant's text holds the control token <.im_end.>"),
        (record(("user", "q"), call({"body": "<|im_start|>"})), "holds the control token <.im_start.>"),
        (
            record(("user", "q"), ("assistant", "a"), tools=[{"name": "<|im_end|>"}]),
            "the list of tools holds the control",
        ),
    ],
)
def test_a_conversation_that_cannot_be_learned_from_says_why(
    tokenizer: Any, conversation: Any, reason: str
) -> None:
    with pytest.raises(TemplateFault, match=reason):
        ChatTemplate(tokenizer).samples(conversation)


def test_many_records_give_what_each_gives_alone_with_faults_in_their_places(qwen3: Any) -> None:
    template = ChatTemplate(qwen3)
    records = [
        chat("q", f"answer {n}", "r", "\n\ntwo") if n % 7 else chat("q", "<|im_end|>") for n in range(700)
    ]
    made = list(tokenise(template, records))
    assert [number for number, one in enumerate(made) if isinstance(one, TemplateFault)] == list(
        range(0, 700, 7)
    )
    assert all(made[number] == template.samples(records[number]) for number in (1, 510, 512, 513, 699))


def test_a_run_gives_signs_of_life_while_it_tokenises(qwen3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache asks for all samples at once: nothing else beats meanwhile."""
    beats: list[str] = []
    monkeypatch.setattr("train.loop.heartbeat.HEARTBEAT.beat", beats.append)
    list(tokenise(ChatTemplate(qwen3), [chat("q", "a")] * 20))
    assert beats == ["reading data"] * 20
