"""Cards: every known form of every tool is read; what is not told is None; damaged text never raises."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from fake_roots import OUTPUTS, WITH_DEVICE, fake_root, needs_of, output_of, put_tool

from train.checks.host.cards import MIB, Card, look_at_cards, parse, read_cards
from train.checks.host.faults import explain
from train.checks.host.finding import FAILED, NOTE, PRESENT, UNKNOWN
from train.checks.host.root import Root


def cards_of(image: str, name: str, tool: int = 0) -> tuple[Card, ...]:
    return parse(needs_of(image).telemetry["tools"][tool]["cards"], output_of(name))


@pytest.mark.parametrize(
    ("image", "name", "card"),
    [
        (
            "ascend",
            "npu-smi-23.0.0-910b3",
            Card(1, "910B3", "Warning", 94.9, None, 41, 0, 3161 * MIB, 65536 * MIB),
        ),
        (
            "ascend",
            "npu-smi-25.2.0-910b4",
            Card(1, "910B4", "OK", 88.9, None, 39, 97, 2653 * MIB, 32768 * MIB),
        ),
        (
            "ascend-a3",
            "npu-smi-26.0.rc2-a3",
            Card(1, "Ascend910", "OK", None, None, 34, 0, 2874 * MIB, 65536 * MIB),
        ),
        ("hygon", "hy-smi-2025-dcu", Card(1, None, None, 588, 600, 71, 99, memory_percent=85)),
        ("hygon", "hy-smi-dtk26.04-hcu", Card(1, None, None, 89, 1000, 52, 4.5, memory_percent=12)),
        ("hygon", "hy-smi-closed", Card(1, None, None, 141, 300, 51, None, memory_percent=0)),
        ("hygon", "rocm-smi-4", Card(1, None, None, 25, 300, 48, 7, memory_percent=12)),
        ("hygon", "rocm-smi-6", Card(1, None, None, 0.02, None, 29, 0, memory_percent=61)),
        ("cuda", "nvidia-smi-query", Card(1, "NVIDIA H200", None, 118.9, 700, 34, 0, 4 * MIB, 143771 * MIB)),
        (
            "cuda",
            "nvidia-smi-not-supported",
            Card(1, "NVIDIA RTX A6000", None, 25.02, 300, 32, None, 6 * MIB, 49140 * MIB),
        ),
    ],
)
def test_a_tool_s_second_card_is_read_as_it_stands(image: str, name: str, card: Card) -> None:
    assert cards_of(image, name)[1] == card


def test_chips_of_one_card_are_told_apart_by_the_number_of_their_node() -> None:
    found = cards_of("ascend-a3", "npu-smi-26.0.rc2-a3")
    assert [card.index for card in found] == [0, 1, 2, 3]
    assert [card.power_watts for card in found] == [162.6, None, 162.6, None]


def test_processes_are_no_cards() -> None:
    assert [card.index for card in cards_of("ascend", "npu-smi-25.5.2-processes")] == [5]


def test_what_is_not_told_is_not_zero() -> None:
    card = cards_of("cuda", "nvidia-smi-not-supported")[0]
    assert (card.power_watts, card.power_cap_watts, card.utilisation_percent) == (None, None, None)
    assert card.memory_used_bytes is None
    assert card.memory_total_bytes == 40960 * MIB
    assert "power_watts" not in card.figures()


def test_a_lost_card_hides_no_other() -> None:
    assert [card.index for card in cards_of("cuda", "nvidia-smi-one-lost")] == [0, 2]


@pytest.mark.parametrize("image", WITH_DEVICE)
def test_damaged_and_foreign_text_is_read_without_a_fault(image: str) -> None:
    """Whatever a tool prints: no exception, no figure that is not finite, and no card without a number."""
    draw = random.Random(image)
    texts = [path.read_text(encoding="utf-8") for path in sorted(OUTPUTS.glob("*.txt"))]
    for _ in range(60):
        text = list(draw.choice(texts))
        for _ in range(draw.randrange(40)):
            at = draw.randrange(len(text))
            text[at] = draw.choice(
                ["", "\n", "|", "9" * 30, "-", "\x00", "é", " ", "NA", "%", ".", text[at] * 3]
            )
        damaged = "".join(text)[: draw.randrange(4000)]
        for tool in needs_of(image).telemetry["tools"]:
            for card in parse(tool["cards"], damaged):
                values = [value for value in card.figures().values() if not isinstance(value, str)]
                assert all(0 <= value < 1e16 for value in values), damaged
        explain(needs_of(image).errors, damaged)


def test_the_second_tool_is_asked_where_the_first_is_not_there(tmp_path: Path) -> None:
    root = fake_root(tmp_path, rocm_smi="hy-smi-2025-dcu")
    reading = read_cards(needs_of("hygon").telemetry, root)
    assert reading.tool == "rocm-smi"
    assert len(reading.cards) == 2


def test_an_absent_tool_is_one_note(tmp_path: Path) -> None:
    needs = needs_of("hygon")
    (seen,) = look_at_cards(needs, read_cards(needs.telemetry, Root(tmp_path)))
    assert (seen.status, seen.needed) == (NOTE, False)
    assert "hy-smi and rocm-smi not here" in seen.detail


def test_unknown_text_is_unknown_with_the_tool_s_first_line(tmp_path: Path) -> None:
    put_tool(tmp_path, "hy-smi", "echo 'version 9: {}'")
    needs = needs_of("hygon")
    (seen,) = look_at_cards(needs, read_cards(needs.telemetry, Root(tmp_path)))
    assert seen.status == UNKNOWN
    assert seen.detail == "hy-smi said what no known version of it says: version 9: {}"


def test_a_card_that_is_not_well_has_failed(tmp_path: Path) -> None:
    needs = needs_of("ascend")
    root = fake_root(tmp_path, npu_smi="npu-smi-23.0.0-910b3")
    sound, ill = look_at_cards(needs, read_cards(needs.telemetry, root))
    assert (sound.status, ill.status) == (PRESENT, FAILED)
    assert "health Warning" in ill.detail


def test_a_tool_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "late"
    put_tool(tmp_path, "hy-smi", f"(sleep 1.2; touch '{mark}') & sleep 30")
    answer = Root(tmp_path).ask("hy-smi", 0.3)
    assert answer.fault == "hy-smi gave no answer in 0.3 s"
    import time

    time.sleep(1.2)
    assert not mark.exists()
