"""Row formats: an alpaca row becomes messages; what is no such row says which field and why."""

from __future__ import annotations

from typing import Any

import pytest

from train.data.formats import convert_rows
from train.data.records import Row


def convert(*values: Any) -> Any:
    return convert_rows([Row(value, f"f:{line}") for line, value in enumerate(values, start=1)])


def test_an_alpaca_row_becomes_a_question_and_an_answer() -> None:
    record = convert({"instruction": "i", "input": "", "output": "o"}).records[0]
    assert record.messages == [{"role": "user", "content": "i"}, {"role": "assistant", "content": "o"}]
    assert record.place == "f:1"


def test_the_input_follows_the_instruction_on_its_own_line() -> None:
    record = convert({"instruction": "i", "input": "given", "output": "o"}).records[0]
    assert record.messages[0]["content"] == "i\ngiven"


def test_system_and_history_come_before_the_question_in_order() -> None:
    record = convert({"system": "s", "history": [["q", "a"]], "instruction": "i", "output": "o"}).records[0]
    assert [message["role"] for message in record.messages] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    assert [message["content"] for message in record.messages] == ["s", "q", "a", "i", "o"]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"instruction": "i", "output": 3}, "field 'output' is int 3"),
        ({"instruction": "i", "output": True}, "field 'output' is bool True"),
        ({"instruction": "i"}, "field 'output' is missing"),
        ({"output": "o"}, "field 'instruction' is missing"),
        ({"instruction": "i", "output": "  "}, "field 'output' is empty"),
        ({"instruction": "", "output": "o"}, "field 'instruction' is empty"),
        ({"instruction": "i", "output": None}, "field 'output' is NoneType None"),
        ({"instruction": "i", "input": ["x"], "output": "o"}, "field 'input' is list"),
        (
            {"instruction": "i\ud800", "output": "o"},
            "half a surrogate pair, which is no character, stands after",
        ),
        ({"instruction": "i", "output": "o", "history": [["\ud800", "a"]]}, "half a surrogate pair"),
        ({"instruction": "i", "output": "o", "\ud800": 1}, "half a surrogate pair"),
        ({"instruction": "i", "output": "o", "history": 0}, "field 'history' is due as"),
        ({"instruction": "i", "output": "o", "history": [["", "a"]]}, "field 'history' is due as"),
        ({"instruction": "i", "output": "o", "history": [["q"]]}, "field 'history' is due as"),
        ({"instruction": "i", "output": "o", "history": "q"}, "field 'history' is due as"),
        ({"question": "q", "answer": "a"}, "no known format has the fields answer, question"),
        ({}, "no known format has the fields none"),
        ([1], "this is list"),
        ("text", "this is str"),
    ],
)
def test_a_bad_row_says_which_field_and_why(row: Any, reason: str) -> None:
    result = convert({"instruction": "good", "output": "o"}, row)
    assert len(result.records) == 1
    assert result.faults[0].place == "f:2"
    assert reason in result.faults[0].reason


def test_an_input_of_null_is_an_empty_input() -> None:
    assert (
        convert({"instruction": "i", "input": None, "output": "o"}).records[0].messages[0]["content"] == "i"
    )


def test_formats_and_ignored_fields_are_counted() -> None:
    row = {"instruction": "i", "output": "o", "id": 1}
    result = convert(row, row, {**row, "source": "x"})
    assert result.formats == {"alpaca": 3}
    assert result.ignored_fields == {"id": 3, "source": 1}
