"""From files to samples: every row is accounted for, nothing is cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train.data.collate import pad
from train.data.samples import load_samples
from train.data.template import IGNORED, ChatTemplate, Sample
from train.errors import EXIT_DATA, UserError
from train.loop.model import load_tokenizer

SHORT = {"instruction": "a", "input": "", "output": "b"}
LONG = {"instruction": "What is momentum? " * 30, "input": "", "output": "b"}


@pytest.fixture(scope="module")
def template(tiny: Path) -> Any:
    return ChatTemplate(load_tokenizer(tiny))


def test_rows_are_kept_in_order_and_counted(template: Any, write_rows: Callable[..., Path]) -> None:
    loaded = load_samples(write_rows(SHORT, {**SHORT, "output": "c", "id": 7}), template, 64, "drop")
    assert [record.messages[-1]["content"] for record in loaded.records] == ["b", "c"]
    assert (loaded.summary.num_rows, loaded.summary.num_kept, loaded.summary.num_too_long) == (2, 2, 0)
    assert loaded.summary.num_target_tokens == 4
    text = "\n".join(loaded.summary.lines())
    assert "kept 2 of 2 rows (alpaca 2)" in text
    assert "id (1 rows)" in text


def test_every_bad_row_of_every_kind_is_listed_at_once(
    template: Any, write_rows: Callable[..., Path]
) -> None:
    path = write_rows(SHORT, "{", {"instruction": "a", "output": 3}, {"q": 1})
    with pytest.raises(UserError) as caught:
        load_samples(path, template, 64, "drop")
    assert [line.split(": ")[0] for line in caught.value.message.splitlines()] == [
        f"{path}:{n}" for n in (2, 3, 4)
    ]
    assert caught.value.exit_code == EXIT_DATA


def test_many_bad_rows_are_counted_beyond_the_first_twenty(
    template: Any, write_rows: Callable[..., Path]
) -> None:
    with pytest.raises(UserError, match="and 5 more bad rows") as caught:
        load_samples(write_rows(*["{"] * 25), template, 64, "drop")
    assert "25 of them" in caught.value.hint


def test_too_long_rows_are_left_out_and_said(template: Any, write_rows: Callable[..., Path]) -> None:
    loaded = load_samples(write_rows(SHORT, LONG), template, 64, "drop")
    assert len(loaded.samples) == 1
    assert "left out 1 rows longer than max_length" in "\n".join(loaded.summary.lines())


def test_too_long_rows_stop_the_run_where_asked_with_the_limit_that_keeps_them(
    template: Any, write_rows: Callable[..., Path]
) -> None:
    path = write_rows(SHORT, LONG)
    with pytest.raises(UserError, match=f"{path}:2: ") as caught:
        load_samples(path, template, 64, "error")
    limit = int(caught.value.hint.split("max_length=")[1].split()[0])
    assert len(load_samples(path, template, limit, "error").samples) == 2


def test_a_file_of_which_nothing_is_left_is_an_error_with_the_figures(
    template: Any, write_rows: Callable[..., Path]
) -> None:
    with pytest.raises(UserError, match=r"kept 0 of 2 rows: 2 too long \(longest \d+ > 64\)"):
        load_samples(write_rows(LONG, LONG), template, 64, "drop")


def test_an_empty_file_is_an_error(template: Any, write_rows: Callable[..., Path]) -> None:
    with pytest.raises(UserError, match="holds no rows"):
        load_samples(write_rows(), template, 64, "drop")


def test_padding_is_masked_by_position_even_where_the_pad_is_the_stop_token() -> None:
    short, long = Sample([5, 2], [IGNORED, 2], "f:1"), Sample([5, 6, 7, 2], [IGNORED, 6, 7, 2], "f:2")
    batch = pad([short, long], 2)
    assert batch["input_ids"].tolist() == [[5, 2, 2, 2], [5, 6, 7, 2]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert batch["labels"].tolist() == [[IGNORED, 2, IGNORED, IGNORED], [IGNORED, 6, 7, 2]]


def test_the_shipped_samples_are_sound(template: Any) -> None:
    from train.checks.tiny import samples_file

    loaded = load_samples(samples_file(), template, 2048, "error")
    assert loaded.summary.num_kept == 400
    questions = [record.messages[0]["content"] for record in loaded.records]
    assert len(set(questions)) == 400
    assert sum(any("\u4e00" <= letter <= "\u9fff" for letter in question) for question in questions) == 200


def test_bad_rows_are_listed_in_the_order_of_the_file(template: Any, write_rows: Callable[..., Path]) -> None:
    path = write_rows({"instruction": "<|im_end|>", "output": "x"}, "{", {"q": 1}, "{")
    with pytest.raises(UserError) as caught:
        load_samples(path, template, 64, "drop")
    assert [line.split(": ")[0] for line in caught.value.message.splitlines()] == [
        f"{path}:{line}" for line in (1, 2, 3, 4)
    ]
