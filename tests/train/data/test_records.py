"""Reading rows: every encoding and oddity that users bring, each row with its place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from train.data.records import Fault, Row, read_json
from train.errors import EXIT_DATA, UserError

ROWS = [{"instruction": "什么是动量？", "output": "质量与速度的乘积。"}, {"instruction": "b", "output": "c"}]


def read_rows(path: Path) -> tuple[list[Row], list[Fault]]:
    found = list(read_json(path))
    rows = [one for one in found if isinstance(one, Row)]
    return rows, [one for one in found if isinstance(one, Fault)]


def jsonl(rows: list[dict[str, str]], newline: str = "\n") -> str:
    return newline.join(json.dumps(row, ensure_ascii=False) for row in rows) + newline


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_rows_are_the_same_in_every_accepted_encoding(tmp_path: Path, encoding: str, newline: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(jsonl(ROWS, newline).encode(encoding))
    rows, faults = read_rows(path)
    assert [row.value for row in rows] == ROWS
    assert [row.place for row in rows] == [f"{path}:1", f"{path}:2"]
    assert faults == []


def test_another_encoding_is_named_with_the_line_that_converts_it(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"instruction": "a", "output": "b"}\n' + jsonl(ROWS).encode("gbk"))
    with pytest.raises(UserError) as caught:
        read_rows(path)
    assert f"{path}:2: is not UTF-8 text; it looks like GB18030" in caught.value.message
    assert caught.value.hint.startswith("iconv -f GB18030 -t UTF-8")
    assert caught.value.exit_code == EXIT_DATA


def test_a_line_separator_inside_a_string_does_not_cut_the_row(write_rows: Callable[..., Path]) -> None:
    path = write_rows('{"instruction": "a\u2028b", "output": "c\u0085d"}')
    rows, faults = read_rows(path)
    assert (len(rows), faults) == (1, [])


def test_blank_lines_are_skipped_and_keep_the_line_numbers(write_rows: Callable[..., Path]) -> None:
    path = write_rows("", '{"a": 1}', "   ", '{"a": 2}', "")
    assert [row.place for row in read_rows(path)[0]] == [f"{path}:2", f"{path}:4"]


def test_every_bad_line_is_reported_and_good_ones_are_kept(write_rows: Callable[..., Path]) -> None:
    path = write_rows(
        '{"a": 1}', '{"a": }', '{"a": NaN}', '{"a": 1, "a": 2}', '{"a": 1} {"b": 2}', '{"a": 3}'
    )
    rows, faults = read_rows(path)
    assert [row.value["a"] for row in rows] == [1, 3]
    assert [fault.place for fault in faults] == [f"{path}:{line}" for line in (2, 3, 4, 5)]
    assert "NaN is not JSON" in faults[1].reason
    assert "'a' is given twice" in faults[2].reason
    assert "text after the row" in faults[3].reason


@pytest.mark.parametrize("name", ["data.json", "data.jsonl"])
def test_an_array_gives_each_row_the_line_where_it_starts(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text('[\n  {"a": 1,\n   "b": 2},\n\n  {"a": 3}\n]\n', encoding="utf-8")
    rows, faults = read_rows(path)
    assert [(row.value["a"], row.place) for row in rows] == [(1, f"{path}:2"), (3, f"{path}:5")]
    assert faults == []


@pytest.mark.parametrize(
    ("text", "line", "num_rows", "reason"),
    [
        ('[\n{"a": 1},\n{"a": }]', 3, 1, "Expecting value"),
        ('[\n{"a": 1}\n{"a": 2}]', 3, 1, "comma"),
        ('[\n{"a": 1},', 2, 1, "Expecting value"),
        ('[{"a": 1}]\n[]', 2, 1, "text after the array"),
    ],
)
def test_a_broken_array_says_where_and_that_the_rest_was_not_read(
    tmp_path: Path, text: str, line: int, num_rows: int, reason: str
) -> None:
    path = tmp_path / "data.json"
    path.write_text(text, encoding="utf-8")
    rows, faults = read_rows(path)
    assert len(rows) == num_rows
    assert faults[0].place == f"{path}:{line}"
    assert reason in faults[0].reason
    assert "the rows after it were not read" in faults[0].reason


@pytest.mark.parametrize("text", ["", "\n\n", "[]", " [ ] "])
def test_a_file_without_rows_has_none_and_no_fault(tmp_path: Path, text: str) -> None:
    path = tmp_path / "data.json"
    path.write_text(text, encoding="utf-8")
    assert read_rows(path) == ([], [])


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()])
def test_a_path_that_is_no_file_is_an_error(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "data")
    with pytest.raises(UserError, match="cannot be read"):
        read_rows(tmp_path / "data")


def test_a_row_nested_without_end_is_a_fault_like_any_other(write_rows: Callable[..., Path]) -> None:
    path = write_rows('{"a": 1}', "[" * 100_000)
    rows, faults = read_rows(path)
    assert (len(rows), [str(fault) for fault in faults]) == (
        1,
        [f"{path}:2: is not valid JSON: it is nested too deep"],
    )


def test_an_object_printed_over_many_lines_is_one_fault(write_rows: Callable[..., Path]) -> None:
    path = write_rows("", "{", ' "data": [', "  {}", " ]", "}")
    rows, faults = read_rows(path)
    assert (rows, [fault.place for fault in faults]) == ([], [f"{path}:2"])
    assert "one object over several lines" in faults[0].reason


def test_text_that_turns_bad_far_into_a_file_is_named_with_its_line(tmp_path: Path) -> None:
    """The decoder reads ahead by pieces, and knows the place in its own piece only."""
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"a": "%s"}\n' % (b"x" * 100) * 500 + '{"a": "动"}\n'.encode("gbk"))
    with pytest.raises(UserError, match=f"{path}:501: is not UTF-8 text"):
        read_rows(path)


def test_rows_are_read_one_at_a_time(tmp_path: Path) -> None:
    """What is far into a file is not looked at before its turn: memory does not grow with the file."""
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"a": 1}\n' * 9999 + b"\xff\n")
    rows = read_json(path)
    assert next(rows) == Row({"a": 1}, f"{path}:1")
    with pytest.raises(UserError, match=f"{path}:10000: is not UTF-8 text"):
        list(rows)
