"""CSV, Parquet and Arrow: real files of every kind, each row with its place, values as they were written."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import ipc, parquet

from train.data.records import Fault, Row
from train.data.sources import find_source, read_records
from train.data.tables import read_arrow, read_csv, read_parquet
from train.errors import EXIT_DATA, UserError

ASK = {"role": "user", "content": "q"}
TELL = {"role": "assistant", "content": "a"}


def split(found: Any) -> tuple[list[Any], list[str], list[str]]:
    """Values, their places, and the faults."""
    ones = list(found)
    rows = [one for one in ones if isinstance(one, Row)]
    return (
        [row.value for row in rows],
        [row.place for row in rows],
        [str(one) for one in ones if isinstance(one, Fault)],
    )


@pytest.fixture
def csv_file(tmp_path: Path) -> Callable[..., Path]:
    def write(text: str, encoding: str = "utf-8", name: str = "data.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode(encoding))
        return path

    return write


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_cells_stay_text_and_rows_have_the_line_on_which_they_begin(
    csv_file: Callable[..., Path], encoding: str, newline: str
) -> None:
    lines = ["instruction,output", '"动量, 是""什么""？\u2028",007', '"two', 'lines",NaN', "", "x,"]
    path = csv_file(newline.join(lines) + newline, encoding)
    values, places, faults = split(read_csv(path))
    assert values == [
        {"instruction": '动量, 是"什么"？\u2028', "output": "007"},
        {"instruction": f"two{newline}lines", "output": "NaN"},
        {"instruction": "x", "output": ""},
    ]
    assert places == [f"{path}:{line}" for line in (2, 3, 6)]
    assert faults == []


def test_a_wrong_number_of_columns_is_a_fault_and_the_rest_is_read(csv_file: Callable[..., Path]) -> None:
    path = csv_file('a,b\n1\n"2\n2",3\n1,2,3\n4,5\n')
    values, _, faults = split(read_csv(path))
    assert [value["b"] for value in values] == ["3", "5"]
    assert faults == [
        f"{path}:2: has 1 columns, the header has 2",
        f"{path}:5: has 3 columns, the header has 2",
    ]


def test_a_quote_that_never_ends_is_a_fault_at_its_place(csv_file: Callable[..., Path]) -> None:
    path = csv_file('a,b\n1,2\n3,"4\n5,6\n')
    values, _, faults = split(read_csv(path))
    assert len(values) == 1
    assert faults == [f"{path}:3: is not valid CSV: unexpected end of data; the rows after it were not read"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a;b\n1;2\n", "the header 'a;b' is one column: commas are due"),
        ("a,a\n1,2\n", "column 'a' is given twice"),
        ("\n\na,\n1,2\n", ":3: a column has no name"),
    ],
)
def test_a_header_that_names_no_columns_is_an_error(
    csv_file: Callable[..., Path], text: str, reason: str
) -> None:
    with pytest.raises(UserError) as caught:
        list(read_csv(csv_file(text)))
    assert reason in caught.value.message
    assert caught.value.exit_code == EXIT_DATA


def test_a_table_of_another_encoding_is_named_with_the_line_that_converts_it(
    csv_file: Callable[..., Path],
) -> None:
    text = "instruction,output\n" + "a,b\n" * 3000 + "什么是动量？,质量与速度的乘积。\n"
    with pytest.raises(UserError, match=r"data.csv:3002: is not UTF-8 text; it looks like GB18030") as caught:
        list(read_csv(csv_file(text, "gbk")))
    assert caught.value.hint.startswith("iconv -f GB18030 -t UTF-8")


def test_a_cell_may_hold_a_conversation_and_its_tools_as_json(csv_file: Callable[..., Path]) -> None:
    cell = json.dumps([ASK, TELL]).replace('"', '""')
    path = csv_file(f'messages,tools,system\n"{cell}","[{{""name"": ""f""}}]",\n"{cell}",,s\n"[1",,\n')
    conversion = read_records(find_source(path))
    assert [record.messages[-2:] for record in conversion.records] == [[ASK, TELL], [ASK, TELL]]
    assert conversion.records[0].tools == [{"type": "function", "function": {"name": "f"}}]
    assert conversion.records[1].messages[0] == {"role": "system", "content": "s"}
    assert "data.csv:4: field 'messages' is not valid JSON" in str(conversion.faults[0])


def test_tabs_and_packed_files_are_read_too(csv_file: Callable[..., Path], tmp_path: Path) -> None:
    assert split(read_csv(csv_file("a\tb\n1,0\t2\n", name="x.tsv")))[0] == [{"a": "1,0", "b": "2"}]
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(b'{"instruction": "i", "output": "o"}\n'))
    assert len(read_records(find_source(packed)).records) == 1
    packed.write_bytes(gzip.compress("动量\n".encode("gbk") * 99))
    with pytest.raises(UserError) as caught:
        read_records(find_source(packed))
    assert caught.value.hint == f"zcat {packed} | iconv -f GB18030 -t UTF-8 > utf8-rows.jsonl"
    packed.write_bytes(gzip.compress(b'{"instruction": "i", "output": "o"}\n')[:30])
    with pytest.raises(UserError, match="rows.jsonl.gz: cannot be read: Compressed file ended"):
        read_records(find_source(packed))


def test_parquet_rows_keep_their_types_and_keys_that_other_rows_have_are_absent(tmp_path: Path) -> None:
    """B17: a struct has the union of all keys; null arguments would reach the prompt."""
    call = {"function": {"name": "f", "arguments": {"city": "x", "days": None}}}
    other = {"function": {"name": "g", "arguments": {"city": None, "days": 2}}}
    rows: list[dict[str, Any]] = [
        {"messages": [ASK, {"role": "assistant", "content": None, "tool_calls": [call, other]}], "n": 1},
        {"messages": [ASK, TELL], "n": None},
        {"messages": [ASK, {"role": "robot", "content": "x"}], "n": 2},
    ]
    path = tmp_path / "data.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=1)
    assert split(read_parquet(path))[1] == [f"{path}:row {number}" for number in (1, 2, 3)]
    conversion = read_records(find_source(path))
    calls = [one["function"]["arguments"] for one in conversion.records[0].messages[1]["tool_calls"]]
    assert calls == [{"city": "x"}, {"days": 2}]
    assert conversion.records[1].messages == [ASK, TELL]
    assert str(conversion.faults[0]).startswith(f"{path}:row 3: messages[1].role is str 'robot'")
    assert conversion.ignored_fields == {"n": 1}


def test_a_number_where_text_is_due_is_a_fault_in_parquet_too(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    table = {
        "instruction": ["a", "b"],
        "output": [1.5, None],
        "made": [pyarrow.scalar(0, pyarrow.timestamp("s")).as_py()] * 2,
    }
    parquet.write_table(pyarrow.table(table), path)
    faults = read_records(find_source(path)).faults
    assert [str(fault) for fault in faults] == [
        f"{path}:row 1: field 'output' is float 1.5, text is due",
        f"{path}:row 2: field 'output' is missing",
    ]


@pytest.mark.parametrize("open_file", [ipc.new_stream, ipc.new_file])
def test_both_forms_of_an_arrow_file_are_read(tmp_path: Path, open_file: Any) -> None:
    path = tmp_path / "data.arrow"
    table = pyarrow.table({"instruction": ["a", "b"], "output": ["c", "d"]})
    with open_file(path, table.schema) as writer:
        writer.write_table(table, max_chunksize=1)
    values, places, _ = split(read_arrow(path))
    assert values == [{"instruction": "a", "output": "c"}, {"instruction": "b", "output": "d"}]
    assert places == [f"{path}:row 1", f"{path}:row 2"]


@pytest.mark.parametrize("name", ["data.parquet", "data.arrow"])
def test_a_column_given_twice_is_refused_as_in_csv(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    columns = [pyarrow.array([text]) for text in ("a", "b", "c")]
    table = pyarrow.Table.from_arrays(columns, names=["instruction", "output", "output"])
    if name.endswith("parquet"):
        parquet.write_table(table, path)
    else:
        with ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(UserError, match=f"{name}: column 'output' is given twice") as caught:
        read_records(find_source(path))
    assert caught.value.exit_code == 65 and caught.value.hint


@pytest.mark.parametrize("name", ["data.parquet", "data.arrow"])
@pytest.mark.parametrize("content", [b"", b"PAR1", b"ARROW1\0\0", b"hello" * 99])
def test_a_broken_table_is_an_error_that_names_it(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"{name}: cannot be read: after row 0: "):
        read_records(find_source(path))
