"""Folders, globs and saved datasets: which files they name, in which order, and what is said of the rest."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train.data.records import hash_file
from train.data.sources import find_source, hash_source, read_records
from train.errors import EXIT_DATA, UserError

ROW = '{"instruction": "i", "output": "%s"}\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files of rows, one of another kind, and a folder below."""
    root = tmp_path / "rows"
    (root / "below").mkdir(parents=True)
    (root / "b.jsonl").write_text(ROW % "b", encoding="utf-8")
    (root / "a.csv").write_text("instruction,output\ni,a\n", encoding="utf-8")
    (root / "c.JSON").write_text(f"[{ROW % 'c'}]", encoding="utf-8")
    (root / "README.md").write_text("x", encoding="utf-8")
    (root / "below" / "d.jsonl").write_text(ROW % "d", encoding="utf-8")
    return root


def answers(path: Path) -> list[str]:
    return [record.messages[-1]["content"] for record in read_records(find_source(path)).records]


def test_a_folder_is_read_by_kind_in_order_of_names_and_the_rest_is_said(folder: Path) -> None:
    assert answers(folder) == ["a", "b", "c"]
    assert find_source(folder).lines() == [
        f"{folder}: reads 3 files: a.csv, b.jsonl, c.JSON",
        f"{folder}: does not read README.md, below/",
    ]


def test_a_glob_names_what_it_matches_and_a_file_of_that_very_name_goes_before(folder: Path) -> None:
    assert answers(folder / "*.jsonl") == ["b"]
    assert answers(folder / "**" / "*.jsonl") == ["b", "d"]
    (folder / "[b].jsonl").write_text(ROW % "literal", encoding="utf-8")
    assert answers(folder / "[b].jsonl") == ["literal"]


def test_a_plain_file_says_nothing_and_any_other_ending_is_read_as_json(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_text(ROW % "x", encoding="utf-8")
    assert answers(path) == ["x"]
    assert find_source(path).lines() == []


@pytest.mark.parametrize(
    ("names", "pattern", "reason"),
    [
        ([], "", "is empty: no file to read"),
        (["x.png"], "", "holds x.png: no file to read"),
        ([], "*.jsonl", "matches nothing: no file to read"),
        (
            ["train-0.jsonl", "test.csv"],
            "",
            r"files of several splits \(test: test.csv; train: train-0.jsonl\)",
        ),
        (
            ["a.train.jsonl", "a.val.jsonl", "b_valid.jsonl"],
            "*.jsonl",
            "several splits .train: .* validation: ",
        ),
    ],
)
def test_a_folder_that_cannot_serve_is_an_error(
    tmp_path: Path, names: list[str], pattern: str, reason: str
) -> None:
    root = tmp_path / "rows"
    root.mkdir()
    for name in names:
        (root / name).write_text(ROW % "x", encoding="utf-8")
    with pytest.raises(UserError, match=reason) as caught:
        find_source(root / pattern)
    assert caught.value.exit_code == EXIT_DATA


def test_words_that_only_look_like_splits_are_none(tmp_path: Path) -> None:
    for name in ("training.jsonl", "contest.jsonl", "evaluate.jsonl", "device.jsonl"):
        (tmp_path / name).write_text(ROW % "x", encoding="utf-8")
    assert len(answers(tmp_path)) == 4


def test_a_pipe_a_missing_file_and_a_broken_link_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    with pytest.raises(UserError, match="pipe.jsonl: is a pipe or a device"):
        find_source(tmp_path / "pipe.jsonl")
    with pytest.raises(UserError, match=r"none.jsonl: cannot be read: No such file"):
        find_source(tmp_path / "none.jsonl")
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "gone")
    with pytest.raises(UserError, match="link.jsonl: cannot be read"):
        find_source(tmp_path / "link.jsonl")


def test_the_hash_of_a_source_is_that_of_its_content_in_order(folder: Path, tmp_path: Path) -> None:
    path = folder / "b.jsonl"
    assert hash_source(find_source(path)) == hash_file(path)
    before = hash_source(find_source(folder))
    (folder / "README.md").write_text("y", encoding="utf-8")
    moved = folder.rename(tmp_path / "moved")
    assert hash_source(find_source(moved)) == before
    (moved / "c.JSON").write_text(f"[{ROW % 'd'}]", encoding="utf-8")
    assert hash_source(find_source(moved)) != before


def test_faults_of_every_file_have_its_name(folder: Path) -> None:
    (folder / "b.jsonl").write_text("{\n", encoding="utf-8")
    (folder / "a.csv").write_text("instruction,output\ni\n", encoding="utf-8")
    conversion = read_records(find_source(folder))
    assert [fault.place for fault in conversion.faults] == [f"{folder}/a.csv:2", f"{folder}/b.jsonl:1"]
    assert [fault.position() for fault in conversion.faults] == [
        (f"{folder}/a.csv", 2),
        (f"{folder}/b.jsonl", 1),
    ]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Folders that the real library wrote, of rows."""
    import datasets

    datasets.disable_progress_bars()
    root = tmp_path_factory.mktemp("saved")

    def save(name: str, *splits: str, rows: Any) -> Path:
        made = datasets.Dataset.from_list(rows)
        found = datasets.DatasetDict(dict.fromkeys(splits, made)) if splits else made
        found.save_to_disk(str(root / name), **({} if splits else {"num_shards": 2}))
        return root / name

    return save


def test_a_saved_dataset_is_read_in_its_own_order(saved: Callable[..., Path]) -> None:
    folder = saved("plain", rows=[{"instruction": "i", "output": text} for text in "abc"])
    assert answers(folder) == ["a", "b", "c"]
    assert find_source(folder).lines()[0].startswith(f"{folder}: reads 2 files: data-00000-of-00002.arrow")
    assert read_records(find_source(folder)).records[2].place.endswith("data-00001-of-00002.arrow:row 1")


def test_a_dataset_of_several_splits_is_refused_with_their_names(saved: Callable[..., Path]) -> None:
    folder = saved("splits", "train", "test", rows=[{"instruction": "i", "output": "o"}])
    with pytest.raises(UserError, match="a saved dataset with the splits test, train"):
        find_source(folder)
    assert answers(folder / "train") == ["o"]


def test_columns_of_mixed_type_come_back_from_a_saved_dataset(
    tmp_path: Path, saved: Callable[..., Path]
) -> None:
    """B07: content as text in one row, as parts in another. datasets 5 keeps such columns as JSON."""
    parts = [{"type": "text", "text": "x"}]
    rows = [
        {"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": "a"}]}
        for content in ("x", parts)
    ]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    import datasets

    try:
        made = datasets.load_dataset(
            "json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache")
        )
    except Exception as fault:  # its own error class, another one in each version
        pytest.skip(f"datasets {datasets.__version__} cannot read such a file: {str(fault).splitlines()[0]}")
    made.save_to_disk(str(tmp_path / "saved"))
    made.to_parquet(str(tmp_path / "rows.parquet"))
    for source in (path, tmp_path / "saved", tmp_path / "rows.parquet"):
        records = read_records(find_source(source)).records
        assert [record.messages[0]["content"] for record in records] == ["x", "x"]


def test_a_saved_dataset_whose_list_of_files_is_broken_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="does not name the dataset's files: KeyError"):
        find_source(tmp_path)
