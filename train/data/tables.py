"""Rows of tables: CSV and TSV, whose cells stay text; Parquet and Arrow, whose values keep their types."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from train.data.records import Fault, Row, loads
from train.data.text import open_text, unreadable
from train.errors import EXIT_CONFIG, EXIT_DATA, UserError

_BATCH_ROWS = 1000
_Decode = Callable[[Any], Any]


def read_csv(path: Path) -> Iterator[Row | Fault]:
    """Rows of a CSV file with a header, by the line on which each begins; `.tsv`: split at tabs.

    UserError where the file cannot be read or its header names no columns.
    """
    is_tabs = path.name.removesuffix(".gz").endswith(".tsv")
    csv.field_size_limit(sys.maxsize)  # a long answer is no fault
    with open_text(path, newline="") as file:
        reader = csv.reader(file, delimiter="\t" if is_tabs else ",", strict=True)
        header: list[str] = []
        before = 0
        try:
            for cells in reader:
                place, before = f"{path}:{before + 1}", reader.line_num
                if not header:
                    header = cells
                    _check_header(place, header)
                elif cells and len(cells) != len(header):
                    yield Fault(place, f"has {len(cells)} columns, the header has {len(header)}")
                elif cells:
                    yield Row(dict(zip(header, cells, strict=True)), place)
        except csv.Error as fault:
            reason = f"is not valid CSV: {fault}; the rows after it were not read"
            yield Fault(f"{path}:{before + 1}", reason)


def _check_header(place: str, header: list[str]) -> None:
    """UserError where the first row names no columns; blank lines may come before it."""
    twice = sorted({name for name in header if header.count(name) > 1})
    reason = f"column {twice[0]!r} is given twice" if twice else ""
    if not all(name.strip() for name in header):
        reason = "a column has no name"
    if len(header) == 1 and any(mark in header[0] for mark in ";\t|,"):
        reason = f"the header {header[0]!r:.60} is one column: commas are due between columns (.tsv: tabs)"
    if reason:
        raise UserError(f"{place}: {reason}", "the first row names the columns", EXIT_DATA)


def read_parquet(path: Path) -> Iterator[Row | Fault]:
    """Rows of a Parquet file, a portion at a time, placed as `file:row N` from 1 on."""
    parquet = _pyarrow(path, "pyarrow.parquet")
    yield from _arrow_rows(path, lambda: parquet.ParquetFile(path).iter_batches(_BATCH_ROWS))


def read_arrow(path: Path) -> Iterator[Row | Fault]:
    """Rows of an Arrow file in either form, as datasets' `save_to_disk` and its cache write them."""
    ipc = _pyarrow(path, "pyarrow.ipc")

    def batches() -> Iterator[Any]:
        with path.open("rb") as file:
            is_file = file.read(6) == b"ARROW1"
            file.seek(0)
            if not is_file:
                yield from ipc.open_stream(file)
                return
            reader = ipc.open_file(file)
            yield from (reader.get_batch(number) for number in range(reader.num_record_batches))

    yield from _arrow_rows(path, batches)


def _pyarrow(path: Path, module: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as fault:
        raise UserError(
            f"{path}: cannot be read without pyarrow: {fault}", "install pyarrow", EXIT_CONFIG
        ) from None


def _arrow_rows(path: Path, batches: Callable[[], Iterator[Any]]) -> Iterator[Row | Fault]:
    import pyarrow

    number = 0
    try:
        for batch in batches():
            _check_columns(path, batch.schema.names)
            decoders = {field.name: _decoder(field.type) for field in batch.schema}
            for portion in range(0, len(batch), _BATCH_ROWS):
                for value in batch.slice(portion, _BATCH_ROWS).to_pylist():
                    number += 1
                    yield _arrow_row(value, decoders, f"{path}:row {number}")
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as fault:
        raise unreadable(path, ValueError(f"after row {number}: {str(fault).splitlines()[0]}")) from None


def _check_columns(path: Path, names: list[str]) -> None:
    """UserError where a column is given twice: a row would keep the last one without a word."""
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        columns = ", ".join(map(repr, twice))
        raise UserError(f"{path}: column {columns} is given twice", "rename or drop one of them", EXIT_DATA)


def _arrow_row(value: dict[str, Any], decoders: dict[str, _Decode | None], place: str) -> Row | Fault:
    """A row without its empty cells: Arrow cannot tell a key that is absent from one that is null."""
    try:
        return Row(_present(value, decoders), place)
    except (ValueError, RecursionError) as fault:
        return Fault(place, f"is not valid JSON: {fault}")


def _present(value: dict[str, Any], decoders: dict[str, _Decode | None]) -> dict[str, Any]:
    found = {}
    for name, below in value.items():
        if below is not None:
            decode = decoders[name]
            found[name] = decode(below) if decode else below
    return found


def _decoder(kind: Any) -> _Decode | None:
    """What turns a value of this Arrow type into what was written: JSON columns (datasets 5) are read, and
    keys that a struct only has because other rows have them are left out.
    """
    import pyarrow

    types = pyarrow.types
    if getattr(kind, "extension_name", "") == "arrow.json":
        return loads
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        below = _decoder(kind.value_type)
        return (
            None if below is None else lambda items: [item if item is None else below(item) for item in items]
        )
    if types.is_struct(kind):
        fields = {
            kind.field(place).name: _decoder(kind.field(place).type) for place in range(kind.num_fields)
        }
        return lambda value: _present(value, fields)
    return None
