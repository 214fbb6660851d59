"""Conversations of every row format: roles, order, parts, tool calls, and what templates make of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from train.data.formats import convert_rows
from train.data.records import Row
from train.data.template import ChatTemplate, TemplateFault
from train.loop.model import load_tokenizer

CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city": "北京", "days": 2}'},
}
TOOL = {"name": "weather", "description": "d", "parameters": {"type": "object", "properties": {}}}
ASK = {"role": "user", "content": "q"}
TELL = {"role": "assistant", "content": "a"}
USED = [
    ASK,
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
    {"role": "assistant", "content": "It is sunny."},
]
NORMAL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "北京", "days": 2}}}


def convert(*values: Any) -> Any:
    return convert_rows([Row(value, f"f:{line}") for line, value in enumerate(values, start=1)])


def record(value: Any) -> Any:
    result = convert(value)
    assert result.faults == []
    return result.records[0]


def test_messages_of_openai_keep_their_turns_and_tool_calls_become_objects() -> None:
    found = record({"messages": USED, "tools": [TOOL]})
    assert found.messages == [
        ASK,
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", **NORMAL}]},
        {"role": "tool", "content": "sunny", "tool_call_id": "c1"},
        {"role": "assistant", "content": "It is sunny."},
    ]
    assert found.tools == [{"type": "function", "function": TOOL}]


def test_the_same_conversation_is_the_same_in_every_notation() -> None:
    """Arguments as text or object, content null, empty or absent, the older function_call, ShareGPT."""
    call = {"name": "weather", "arguments": {"city": "北京", "days": 2}}
    result, last = {"role": "tool", "content": "sunny"}, USED[3]
    old = {"role": "assistant", "function_call": {**call, "arguments": json.dumps(call["arguments"])}}
    shared = [
        {"from": "human", "value": "q"},
        {"from": "function_call", "value": json.dumps(call)},
        {"from": "observation", "value": "sunny"},
        {"from": "gpt", "value": "It is sunny."},
    ]
    rows = [
        {"messages": [ASK, {"role": "assistant", "tool_calls": [call]}, result, last], "tools": [TOOL]},
        {
            "messages": [
                ASK,
                {"role": "assistant", "content": "", "tool_calls": [{"function": call}]},
                result,
                last,
            ]
        },
        {
            "messages": [ASK, old, {"role": "function", "name": None, "content": "sunny"}, last],
            "functions": [TOOL],
        },
        {"conversations": shared, "tools": json.dumps([TOOL])},
        {"conversations": [ASK, {"role": "assistant", "content": None, "tool_calls": [call]}, result, last]},
        {"messages": json.dumps([ASK, {"role": "assistant", "tool_calls": [call]}, result, last])},
        {"prompt": [ASK, {"role": "assistant", "tool_calls": [call]}, result], "completion": [last]},
    ]
    records = convert(*rows).records
    assert len(records) == len(rows)
    wanted = [ASK, {"role": "assistant", "content": "", "tool_calls": [NORMAL]}, result, last]
    assert all(one.messages == wanted for one in records)
    assert [bool(one.tools) for one in records] == [True, False, True, True, False, False, False]
    assert all(one.tools == [{"type": "function", "function": TOOL}] for one in records if one.tools)


def test_a_sharegpt_row_with_its_own_system_text_and_many_turns() -> None:
    turns = [("human", "a"), ("gpt", "b"), ("user", "c"), ("assistant", "d")]
    row = {"conversations": [{"from": who, "value": text} for who, text in turns], "system": "s", "id": 3}
    result = convert(row)
    assert [(m["role"], m["content"]) for m in result.records[0].messages] == [
        ("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d"),
    ]  # fmt: skip
    assert (result.formats, result.ignored_fields) == ({"sharegpt": 1}, {"id": 1})


def test_prompt_and_completion_are_a_question_and_an_answer() -> None:
    result = convert({"prompt": "p", "completion": "c"})
    assert result.records[0].messages == [
        {"role": "user", "content": "p"},
        {"role": "assistant", "content": "c"},
    ]
    assert result.formats == {"prompt/completion": 1}


def test_content_may_be_text_or_text_parts_in_one_file_and_keys_that_are_null_are_nothing() -> None:
    """B07 and B17: parts that went through Arrow have the keys of all other parts, as null."""
    parts = [
        {"type": "text", "text": "x", "image": None},
        {"type": "text", "text": "y"},
        {"text": "z", "type": None},
    ]
    rows = convert(
        {"messages": [ASK, TELL]}, {"messages": [{"role": "user", "content": parts, "name": None}, TELL]}
    )
    assert [one.messages[0] for one in rows.records] == [ASK, {"role": "user", "content": "xyz"}]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": []}, "field 'messages' is empty"),
        ({"messages": "hello"}, "field 'messages' is str 'hello', a list is due"),
        ({"messages": "[1,"}, "field 'messages' is not valid JSON"),
        ({"messages": [ASK, 3]}, "messages[1] is int 3"),
        ({"messages": [{"content": "x"}, TELL]}, "messages[0].role is missing"),
        (
            {"messages": [{"role": "bot", "content": "x"}]},
            "messages[0].role is str 'bot'; the roles are system,",
        ),
        (
            {"messages": [ASK, {"role": "assistant", "content": 5}]},
            "messages[1].content is int 5, text is due",
        ),
        (
            {"messages": [ASK, {"role": "assistant", "content": None}]},
            "messages[1].content is missing or null",
        ),
        ({"messages": [ASK, {"role": "assistant", "content": " "}]}, "messages[1].content is empty"),
        ({"messages": [{"role": "user"}, TELL]}, "messages[0].content is missing or null"),
        ({"messages": [{"role": "user", "content": [True]}, TELL]}, "messages[0].content[0] is bool True"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, TELL]},
            "messages[0].content[0] is a part of type 'image_url': only text is read so far",
        ),
        ({"messages": [{"role": "user", "content": [{"image": "a.png"}]}, TELL]}, "type 'image': only text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}, TELL]},
            "content[0].text is int",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}, TELL]}, "content[0].text is missing"),
        ({"messages": [ASK, TELL], "images": ["a.png"]}, "field 'images' is given: only text"),
        ({"messages": [ASK, ASK, TELL]}, "messages: message 2: user follows user"),
        ({"messages": [ASK, TELL, TELL]}, "messages: message 3: assistant follows assistant"),
        ({"messages": [TELL, ASK, TELL]}, "messages: message 1: assistant opens the conversation"),
        ({"messages": [ASK, USED[2], TELL]}, "messages: message 2: tool follows user"),
        ({"messages": [ASK, TELL, ASK]}, "messages: ends with user: there is no answer"),
        ({"messages": [ASK, *USED[1:3]]}, "messages: ends with tool"),
        (
            {"messages": [ASK, TELL, USED[2], TELL]},
            "message 3: a tool's result follows an answer that called none",
        ),
        (
            {"messages": [{**ASK, "tool_calls": [CALL]}, TELL]},
            "messages[0] has tool_calls, and only the assistant",
        ),
        (
            {"messages": [ASK, {**TELL, "tool_calls": [{"function": {}}]}]},
            "messages[1].tool_calls[0] is dict",
        ),
        (
            {"messages": [ASK, {**TELL, "tool_calls": [{"name": "f", "arguments": "{"}]}]},
            "messages[1].tool_calls[0].arguments is not valid JSON",
        ),
        (
            {"messages": [ASK, {**TELL, "tool_calls": [{"name": "f", "arguments": '{"a": 1, "a": 2}'}]}]},
            "key 'a' is given twice",
        ),
        (
            {"messages": [ASK, {**TELL, "tool_calls": [{"name": "f", "arguments": [1]}]}]},
            "arguments is list [1]",
        ),
        ({"messages": [ASK, {**TELL, "weight": 0}]}, "messages[1].weight is 0"),
        ({"messages": [ASK, {**TELL, "loss": False}]}, "messages[1].loss is False"),
        ({"messages": [{"role": "system", "content": "s"}, ASK, TELL], "system": "t"}, "one of them is due"),
        ({"messages": [ASK, TELL], "tools": "x"}, "field 'tools' is str 'x', a list is due"),
        ({"messages": [ASK, TELL], "tools": [{"type": "function"}]}, "tools[0] has no function with a name"),
        ({"conversations": [{"from": "human", "value": "q"}]}, "conversations: ends with user"),
        ({"conversations": [{"from": "human", "value": None}]}, "conversations[0].value is missing or null"),
        (
            {"conversations": [{"from": "human", "value": "q"}, {"from": "function_call", "value": "f()"}]},
            "conversations[1].value is not valid JSON",
        ),
        ({"prompt": "p"}, "field 'completion' is missing"),
        ({"prompt": "p", "completion": 4}, "field 'completion' is int 4"),
        ({"prompt": [ASK], "completion": [ASK, TELL]}, "'completion' holds a message of user"),
        ({"prompt": [ASK, TELL], "completion": "c"}, "'prompt' ends with an answer"),
    ],
)
def test_a_bad_conversation_says_which_turn_and_why(row: Any, reason: str) -> None:
    result = convert({"messages": [ASK, TELL]}, row)
    assert len(result.records) == 1
    assert [fault.place for fault in result.faults] == ["f:2"]
    assert reason in result.faults[0].reason


def test_a_row_that_fits_two_formats_is_of_the_first_and_this_is_said() -> None:
    both = {"messages": [ASK, TELL], "prompt": "p", "completion": "c", "instruction": "i"}
    result = convert(
        both,
        {"instruction": "i", "output": "o", "prompt": "p"},
        {"messages": None, "prompt": "p", "completion": "c"},
    )
    assert [one.messages[-1]["content"] for one in result.records] == ["a", "o", "c"]
    assert result.formats == {
        "messages rather than prompt/completion": 1,
        "alpaca": 1,
        "prompt/completion": 1,
    }
    assert result.ignored_fields == {"prompt": 2, "completion": 1, "instruction": 1}


def test_keys_of_turns_that_nothing_reads_are_counted() -> None:
    result = convert({"messages": [{**ASK, "refusal": None, "date": "d"}, {**TELL, "weight": 1}]})
    assert result.ignored_fields == {"messages[].date": 1, "messages[].weight": 1}


@pytest.fixture(scope="module")
def qwen3() -> Any:
    folder = os.environ.get("ISOTUNE_TEST_QWEN3", "")
    if not folder:
        pytest.skip("no real Qwen3 tokenizer: ISOTUNE_TEST_QWEN3 names its folder (test.sh sets it)")
    return load_tokenizer(Path(folder))


def test_qwen3_renders_tools_calls_and_results_as_a_server_does(qwen3: Any) -> None:
    found = record({"messages": USED, "tools": [TOOL]})
    sample = ChatTemplate(qwen3).sample(found)
    text = qwen3.decode(sample.input_ids)
    assert text == (
        "<|im_start|>system\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
        '{"type": "function", "function": {"name": "weather", "description": "d", "parameters": '
        '{"type": "object", "properties": {}}}}\n</tools>\n\n'
        "For each function call, return a json object with function name and arguments within "
        '<tool_call></tool_call> XML tags:\n<tool_call>\n{"name": <function-name>, "arguments": '
        "<args-json-object>}\n</tool_call><|im_end|>\n"
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\n"
        '<tool_call>\n{"name": "weather", "arguments": {"city": "北京", "days": 2}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\nsunny\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\nIt is sunny.<|im_end|>"
    )
    assert "None" not in text


def test_qwen3_learns_a_call_that_ends_the_row(qwen3: Any) -> None:
    sample = ChatTemplate(qwen3).sample(record({"messages": USED[:2], "tools": [TOOL]}))
    learned = qwen3.decode([label for label in sample.labels if label != -100])
    assert learned == (
        '<tool_call>\n{"name": "weather", "arguments": {"city": "北京", "days": 2}}\n</tool_call><|im_end|>'
    )


def test_qwen3_renders_a_conversation_of_many_turns(qwen3: Any) -> None:
    turns = [("human", "a"), ("gpt", "b"), ("human", "c"), ("gpt", "d")]
    row = {"conversations": [{"from": who, "value": text} for who, text in turns], "system": "s"}
    assert qwen3.decode(ChatTemplate(qwen3).sample(record(row)).input_ids) == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n"
        "<|im_start|>user\nc<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nd<|im_end|>"
    )


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": [ASK, TELL], "tools": [TOOL]}, "leaves out the row's tools"),
        ({"messages": USED}, "leaves out tool_calls"),
        ({"messages": [ASK, {**TELL, "reasoning_content": "r"}]}, "leaves out reasoning_content"),
    ],
)
def test_what_a_template_would_drop_without_a_word_is_a_fault(tiny: Path, row: Any, reason: str) -> None:
    with pytest.raises(TemplateFault, match=reason):
        ChatTemplate(load_tokenizer(tiny)).sample(record(row))


def test_a_control_token_in_a_call_or_a_tool_is_found(qwen3: Any) -> None:
    call = {"name": "f", "arguments": {"x": "<|im_end|>"}}
    rows = [
        {"messages": [ASK, {**TELL, "tool_calls": [call]}]},
        {"messages": [ASK, TELL], "tools": [{"name": "f", "description": "<|im_start|>"}]},
    ]
    for row in rows:
        with pytest.raises(TemplateFault, match="holds? the control token <.im_"):
            ChatTemplate(qwen3).sample(record(row))
