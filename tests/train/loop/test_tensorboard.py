"""An event file that TensorBoard reads, which says what metrics.jsonl says."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.train.loop.conftest import cut_back, go
from train.loop.metrics import EvaluationMetrics, StepMetrics
from train.loop.tensorboard import NAME, EventFile, record

STEP = StepMetrics(300, 0.5, 3.25, 1e-3, 1.5, 10, 5, 0.5, 9)
EVALUATION = EvaluationMetrics(300, 0.5, {"a": 1.5, "b": 2.25}, 0.75)


def messages(content: bytes) -> Iterator[bytes]:
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        whole = content[: length + 16]
        assert record(whole[12:-4]) == whole
        yield whole[12:-4]
        content = content[length + 16 :]


def fields(message: bytes) -> Iterator[tuple[int, Any]]:
    """Number and content of each field of a protobuf message."""
    place = 0

    def varint() -> int:
        nonlocal place
        number = shift = 0
        while True:
            byte = message[place]
            place += 1
            number |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return number

    while place < len(message):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        part, place = message[place : place + size], place + size
        formats = {1: "<d", 5: "<f"}
        yield key >> 3, struct.unpack(formats[key & 7], part)[0] if key & 7 in formats else part


def read_events(folder: Path) -> list[tuple[int, str, float]]:
    """Step, tag and value of every figure."""
    first, *rest = messages((folder / NAME).read_bytes())
    assert dict(fields(first))[3] == b"brain.Event:2"
    found = []
    for message in rest:
        event = dict(fields(message))
        for _, value in fields(event[5]):
            figure = dict(fields(value))
            found.append((event[2], figure[1].decode(), figure[2]))
    return found


def test_a_record_has_the_checksums_of_the_format() -> None:
    """The masked CRC-32C of eight bytes of length and of the content, known from the format's own tests."""
    assert record(b"123456789")[-4:] == struct.pack("<I", masked(0xE3069283))


def masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_every_figure_has_its_step_and_tag(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "tensorboard", [])
    file.add(STEP)
    file.add(EVALUATION)
    found = read_events(tmp_path / "tensorboard")
    assert (300, "train/loss", 3.25) in found
    assert (300, "train/grad_norm", 1.5) in found
    assert found[-2:] == [(300, "eval_loss/a", 1.5), (300, "eval_loss/b", 2.25)]
    assert not [tag for _, tag, _ in found if tag == "train/step"]


def test_the_library_itself_reads_it(tmp_path: Path) -> None:
    loading = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    file = EventFile(tmp_path / "tensorboard", [STEP])
    file.add(EVALUATION)
    board = loading.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in board.Scalars("train/loss")] == [(300, 3.25)]
    assert [(event.step, event.value) for event in board.Scalars("eval_loss/b")] == [(300, 2.25)]


def test_a_run_that_is_asked_to_mirrors_its_metrics_after_a_resume_too(
    recipe: dict[str, Any], whole: Path, without_drawing: None
) -> None:
    """Each step once, also those that were trained again; asking is no change of the run."""
    folder = cut_back(whole, recipe["output"], 2)
    go(recipe, tensorboard=True)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
    losses = [
        (step, value) for step, tag, value in read_events(folder / "tensorboard") if tag == "train/loss"
    ]
    assert losses == [(line["step"], pytest.approx(line["loss"])) for line in lines]
    assert len(losses) == 4


def test_nobody_gets_the_folder_without_asking(whole: Path) -> None:
    assert not (whole / "tensorboard").exists()


def test_a_figure_beyond_the_files_short_numbers_is_infinite_there(tmp_path: Path) -> None:
    events = EventFile(tmp_path / "tensorboard", [])
    events.add(replace(STEP, learning_rate=1e39, grad_norm=-1e300))
    content = events.path.read_bytes()
    assert struct.pack("<f", math.inf) in content
    assert struct.pack("<f", -math.inf) in content
