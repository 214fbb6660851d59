"""From files to samples: every row is accounted for, nothing is cut."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conversations import chat

from train.data.collate import pad
from train.data.samples import Policies, load_samples
from train.data.template import IGNORED, ChatTemplate, Sample
from train.errors import EXIT_DATA, UserError
from train.loop.model import load_tokenizer

SHORT = {"instruction": "a", "input": "", "output": "b"}
LONG = {"instruction": "What is momentum? " * 30, "input": "", "output": "b"}


@pytest.fixture(scope="module")
def template(tiny: Path) -> Any:
    return ChatTemplate(load_tokenizer(tiny))


def test_rows_are_kept_in_order_and_counted(template: Any, write_rows: Callable[..., Path]) -> None:
    path = write_rows(SHORT, {**SHORT, "output": "c", "id": 7})
    loaded = load_samples(path, template, Policies(64, "drop"))
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
        load_samples(path, template, Policies(64, "drop"))
    assert [line.split(": ")[0] for line in caught.value.message.splitlines()] == [
        f"{path}:{n}" for n in (2, 3, 4)
    ]
    assert caught.value.exit_code == EXIT_DATA


def test_many_bad_rows_are_counted_beyond_the_first_twenty(
    template: Any, write_rows: Callable[..., Path]
) -> None:
    with pytest.raises(UserError, match="and 5 more bad rows") as caught:
        load_samples(write_rows(*["{"] * 25), template, Policies(64, "drop"))
    assert "25 of them" in caught.value.hint


def test_too_long_rows_are_left_out_and_said(template: Any, write_rows: Callable[..., Path]) -> None:
    loaded = load_samples(write_rows(SHORT, LONG), template, Policies(64, "drop"))
    assert len(loaded.samples) == 1
    assert "left out 1 rows longer than max_length" in "\n".join(loaded.summary.lines())


def test_too_long_rows_stop_the_run_where_asked_with_the_limit_that_keeps_them(
    template: Any, write_rows: Callable[..., Path]
) -> None:
    path = write_rows(SHORT, LONG)
    with pytest.raises(UserError, match=f"{path}:2: ") as caught:
        load_samples(path, template, Policies(64, "error"))
    limit = int(caught.value.hint.split("max_length=")[1].split()[0])
    assert len(load_samples(path, template, Policies(limit, "error")).samples) == 2


def test_a_file_of_which_nothing_is_left_is_an_error_with_the_figures(
    template: Any, write_rows: Callable[..., Path]
) -> None:
    with pytest.raises(UserError, match=r"kept 0 of 2 rows: 2 too long \(longest \d+ > 64\)"):
        load_samples(write_rows(LONG, LONG), template, Policies(64, "drop"))


def test_an_empty_file_is_an_error(template: Any, write_rows: Callable[..., Path]) -> None:
    with pytest.raises(UserError, match="holds no rows"):
        load_samples(write_rows(), template, Policies(64, "drop"))


def test_padding_is_masked_by_position_even_where_the_pad_is_the_stop_token() -> None:
    short, long = Sample([5, 2], [IGNORED, 2], "f:1"), Sample([5, 6, 7, 2], [IGNORED, 6, 7, 2], "f:2")
    batch = pad([short, long], 2)
    assert batch["input_ids"].tolist() == [[5, 2, 2, 2], [5, 6, 7, 2]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert batch["labels"].tolist() == [[IGNORED, 2, IGNORED, IGNORED], [IGNORED, 6, 7, 2]]


def test_the_shipped_samples_are_sound(template: Any) -> None:
    from train.checks.tiny import samples_file

    loaded = load_samples(samples_file(), template, Policies(2048, "error"))
    assert loaded.summary.num_kept == 400
    questions = [record.messages[0]["content"] for record in loaded.records]
    assert len(set(questions)) == 400
    assert sum(any("\u4e00" <= letter <= "\u9fff" for letter in question) for question in questions) == 200


def test_bad_rows_are_listed_in_the_order_of_the_file(template: Any, write_rows: Callable[..., Path]) -> None:
    path = write_rows({"instruction": "<|im_end|>", "output": "x"}, "{", {"q": 1}, "{")
    with pytest.raises(UserError) as caught:
        load_samples(path, template, Policies(64, "drop"))
    assert [line.split(": ")[0] for line in caught.value.message.splitlines()] == [
        f"{path}:{line}" for line in (1, 2, 3, 4)
    ]


MIDDLE = {
    "instruction": "short",
    "output": "c",
    "history": [["What is momentum? " * 30, "mass times velocity"]],
}


def test_a_run_that_could_learn_nothing_stops_with_the_lengths_and_the_limits(
    template: Any, write_rows: Callable[..., Path]
) -> None:
    """Four prompts that fill max_length: no label is left, and no loss of 0.0 is ever printed."""
    longer = {**LONG, "instruction": LONG["instruction"] * 2}
    with pytest.raises(UserError, match=r"kept 0 of 4 rows: 4 too long \(longest \d+ > 32\)") as caught:
        load_samples(write_rows(LONG, LONG, LONG, longer), template, Policies(32, "drop"))
    assert caught.value.exit_code == EXIT_DATA
    everything, least = [int(number) for number in re.findall(r"\d+", caught.value.hint)]
    assert (
        load_samples(write_rows(LONG, longer), template, Policies(everything, "error")).summary.num_kept == 2
    )
    assert load_samples(write_rows(LONG, longer), template, Policies(least, "drop")).summary.num_kept == 1
    with pytest.raises(UserError):
        load_samples(write_rows(LONG, longer), template, Policies(least - 1, "drop"))


@pytest.mark.parametrize("limit", [40, 64, 200])
def test_cut_prompts_keep_the_answer_the_frame_and_the_end_of_the_text(
    template: Any, write_rows: Callable[..., Path], limit: int
) -> None:
    loaded = load_samples(write_rows(SHORT, LONG), template, Policies(limit, "cut-prompt"))
    sample, record = loaded.samples[1], loaded.records[1]
    assert limit - 4 <= len(sample.input_ids) <= limit
    assert template.sample(record) == sample  # what the template gives for the shorter text
    assert LONG["instruction"].endswith(record.messages[0]["content"])
    assert (record.messages[1]["content"], sample.num_target_tokens) == ("b", 2)
    assert (loaded.summary.num_cut, loaded.summary.num_too_long) == (1, 0)
    assert "cut the prompts of 1 samples" in "\n".join(loaded.summary.lines())
    assert f"max_length {loaded.summary.longest_tokens} keeps everything" in "\n".join(loaded.summary.lines())


def test_the_longest_texts_are_cut_first_and_learned_answers_never(
    template: Any, write_rows: Callable[..., Path]
) -> None:
    loaded = load_samples(write_rows(MIDDLE), template, Policies(120, "cut-prompt"))
    messages = loaded.records[0].messages
    assert [messages[number]["content"] for number in (1, 2, 3)] == ["mass times velocity", "short", "c"]
    assert 0 < len(messages[0]["content"]) < 200
    assert loaded.samples[0].turns == (1, 3)


def test_a_sample_whose_answer_alone_is_too_long_is_left_out_and_said(
    template: Any, write_rows: Callable[..., Path]
) -> None:
    answer = {"instruction": "a b c d", "output": "What is momentum? " * 30}
    loaded = load_samples(write_rows(SHORT, answer), template, Policies(64, "cut-prompt"))
    assert (loaded.summary.num_cut, loaded.summary.num_too_long, len(loaded.samples)) == (0, 1, 1)
    assert [place.rpartition(":")[2] for place, _ in loaded.too_long] == ["2"]


def test_bad_rows_are_skipped_up_to_the_share_that_is_allowed_and_listed(
    template: Any, write_rows: Callable[..., Path]
) -> None:
    path = write_rows(SHORT, SHORT, {"q": 1}, "{")
    loaded = load_samples(path, template, Policies(64, "drop", "skip", 0.5))
    assert (loaded.summary.num_rows, loaded.summary.num_kept, loaded.summary.num_bad) == (4, 2, 2)
    text = "\n".join(loaded.summary.lines())
    assert "left out 2 bad rows (50.00%)" in text
    assert f"{path}:3: no known format" in text
    with pytest.raises(
        UserError, match=r"2 of 4 rows are bad \(50.00%\), max_bad_rows allows 49.00%"
    ) as caught:
        load_samples(path, template, Policies(64, "drop", "skip", 0.49))
    assert f"{path}:4: " in caught.value.message


def test_rows_that_were_never_read_cannot_be_skipped(template: Any, tmp_path: Path) -> None:
    path = tmp_path / "array.json"
    path.write_text(json.dumps([SHORT] * 200)[:-30], encoding="utf-8")
    with pytest.raises(UserError, match="were not read") as caught:
        load_samples(path, template, Policies(64, "drop", "skip", 1.0))
    assert "cannot be skipped" in caught.value.hint


def test_a_file_of_bad_rows_alone_is_an_error_even_where_all_may_be_skipped(
    template: Any, write_rows: Callable[..., Path]
) -> None:
    with pytest.raises(UserError, match="kept 0 of 2 rows: 2 bad"):
        load_samples(write_rows("{", "{"), template, Policies(64, "drop", "skip", 1.0))


def test_copies_are_counted_with_their_places(template: Any, write_rows: Callable[..., Path]) -> None:
    path = write_rows(SHORT, {**SHORT, "output": "c"}, {**SHORT, "id": 7}, SHORT)
    summary = load_samples(path, template, Policies(64, "drop")).summary
    assert (summary.num_duplicates, summary.num_kept) == (2, 4)
    assert summary.duplicates == [(f"{path}:3", f"{path}:1"), (f"{path}:4", f"{path}:1")]


def test_split_conversations_are_counted_and_turns_beyond_the_limit_left_out_by_themselves(
    qwen3: Any, write_rows: Callable[..., Path]
) -> None:
    chatter = {"instruction": "r " * 60, "output": "two", "history": [["q", "one"]]}
    loaded = load_samples(write_rows(chatter), ChatTemplate(qwen3), Policies(64, "drop"))
    summary = loaded.summary
    assert (summary.num_split, summary.num_kept, summary.num_turns_too_long) == (1, 1, 1)
    assert [sample.turns for sample in loaded.samples] == [(1,)]
    text = "\n".join(summary.lines())
    assert "split 1 conversations" in text
    assert "left out 1 turns longer than max_length" in text


def test_the_stop_token_is_learned_where_it_is_the_pad_token_too(template: Any) -> None:
    records = [chat("a", "b"), chat("a", "a longer answer")]
    samples = [template.sample(record) for record in records]
    batch = pad(samples, template.stop_token_id())
    for sample, labels in zip(samples, batch["labels"].tolist(), strict=True):
        assert labels.count(template.stop_token_id()) == 1
        assert labels[len(sample.input_ids) - 1] == template.stop_token_id()


def test_samples_hold_four_bytes_a_token_and_behave_as_lists_do() -> None:
    sample = Sample([5, 6, 2], [IGNORED, 6, 2], "f:1")
    assert (sample.input_ids.itemsize, sample.labels.itemsize) == (4, 4)  # type: ignore[attr-defined]
    assert list(sample.input_ids) == [5, 6, 2]
    assert sample == Sample([5, 6, 2], [IGNORED, 6, 2], "f:1")
    assert sample.num_target_tokens == 2
    assert Sample([6, 2], [6, 2], "f:1").num_target_tokens == 1
