"""The figures of metrics.jsonl as TensorBoard reads them, written without any library of it.

An event file is a row of records (length, checksum, bytes, checksum) that hold protobuf messages of five
fields: tensorflow/core/util/event.proto and tensorflow/core/framework/summary.proto.
"""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from train.loop.metrics import EvaluationMetrics, Line

NAME = "events.out.tfevents.1.isotune"
POLYNOMIAL = 0x82F63B78
"""Of CRC-32C, bits reversed."""
MASK = 0xA282EAD8
VARINT, DOUBLE, BYTES, FLOAT = 0, 1, 2, 5


class EventFile:
    """One event file in `folder`, which says what the metrics say: made anew from `lines` at each start, so
    that a run which goes on shows no step twice.
    """

    def __init__(self, folder: Path, lines: Iterable[Line]) -> None:
        folder.mkdir(exist_ok=True)
        kept = list(lines)
        self.path = folder / NAME
        self.began = time.time() - (kept[-1].seconds if kept else 0.0)
        first = record(_field(1, DOUBLE, struct.pack("<d", self.began)) + _text(3, "brain.Event:2"))
        self.path.write_bytes(first + b"".join(map(self._record, kept)))

    def add(self, line: Line) -> None:
        with self.path.open("ab") as file:
            file.write(self._record(line))

    def _record(self, line: Line) -> bytes:
        values = b"".join(
            _message(1, _text(1, tag) + _field(2, FLOAT, _short(value))) for tag, value in scalars(line)
        )
        at = _field(1, DOUBLE, struct.pack("<d", self.began + line.seconds))
        return record(at + _field(2, VARINT, _varint(line.step)) + _message(5, values))


def scalars(line: Line) -> Iterator[tuple[str, float]]:
    """Tag and value of each figure of a line."""
    if isinstance(line, EvaluationMetrics):
        yield from ((f"eval_loss/{name}", loss) for name, loss in line.eval_loss.items())
        return
    for name, value in asdict(line).items():
        if isinstance(value, int | float) and name != "step":
            yield f"train/{name}", value


def record(content: bytes) -> bytes:
    """A message as an event file holds it."""
    length = struct.pack("<Q", len(content))
    return length + _checksum(length) + content + _checksum(content)


def _checksum(content: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in content:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (POLYNOMIAL if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF)


def _short(value: float) -> bytes:
    """A figure in four bytes; infinite where it is beyond them."""
    try:
        return struct.pack("<f", value)
    except OverflowError:
        return struct.pack("<f", math.copysign(math.inf, value))


def _varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def _field(number: int, kind: int, content: bytes) -> bytes:
    return _varint(number << 3 | kind) + content


def _message(number: int, content: bytes) -> bytes:
    return _field(number, BYTES, _varint(len(content)) + content)


def _text(number: int, text: str) -> bytes:
    return _message(number, text.encode())
