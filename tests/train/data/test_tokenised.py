"""Samples through the cache: the same to the last token, made anew for every change that matters (B70)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train.data import tokenised
from train.data.formats import Record
from train.data.samples import load_samples
from train.data.template import IGNORED, ChatTemplate, Sample, TemplateFault
from train.data.tokenised import pack, sample_key, unpack
from train.loop.model import load_tokenizer

ROWS = [{"instruction": f"What is {number}?", "output": f"It is {number}."} for number in range(6)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tokenised, "MANY", 3)
    monkeypatch.setenv("ISOTUNE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def template(tiny: Path) -> Any:
    return ChatTemplate(load_tokenizer(tiny))


def load(path: Path, template: ChatTemplate, **options: Any) -> Any:
    return load_samples(path, template, 64, "drop", sample_cache="auto", **options)


def is_hit(loaded: Any) -> bool:
    return any("as tokenised before" in note for note in loaded.summary.notes)


def test_samples_from_the_cache_equal_those_that_were_made(
    write_rows: Callable[..., Path], template: Any
) -> None:
    path = write_rows(*ROWS)
    first, second = load(path, template), load(path, template)
    assert (is_hit(first), is_hit(second)) == (False, True)
    assert second.samples == first.samples == load_samples(path, template, 64, "drop").samples
    assert second.records == first.records


def test_one_changed_character_of_the_same_size_and_time_is_seen(
    write_rows: Callable[..., Path], template: Any
) -> None:
    path = write_rows(*ROWS)
    load(path, template)
    times = path.stat()
    path.write_text(path.read_text("utf-8").replace("It is 3.", "It is 8."), encoding="utf-8")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    changed = load(path, template)
    assert not is_hit(changed)
    assert changed.samples == load_samples(path, template, 64, "drop").samples


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer.json", "tokenizer_config.json"])
def test_another_template_or_tokenizer_is_seen(
    write_rows: Callable[..., Path], tiny: Path, tmp_path: Path, template: Any, name: str
) -> None:
    path = write_rows(*ROWS)
    load(path, template)
    copy = Path(shutil.copytree(tiny, tmp_path / "copy"))
    assert is_hit(load(path, ChatTemplate(load_tokenizer(copy)))), "a copy elsewhere is the same"
    text = (copy / name).read_text("utf-8")
    text = "{{ '' }}" + text if name == "chat_template.jinja" else json.dumps(json.loads(text))
    (copy / name).write_text(text, encoding="utf-8")
    assert not is_hit(load(path, ChatTemplate(load_tokenizer(copy))))


def test_an_option_that_changes_samples_and_the_code_itself_are_in_the_key(
    template: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = sample_key(template.tokenizer, "d", {"thinking": "auto"})
    assert key == sample_key(template.tokenizer, "d", {"thinking": "auto"})
    assert key != sample_key(template.tokenizer, "d", {"thinking": "on"})
    assert key != sample_key(template.tokenizer, "e", {"thinking": "auto"})
    monkeypatch.setattr(tokenised, "__file__", str(tmp_path / "tokenised.py"))
    assert sample_key(template.tokenizer, "d", {"thinking": "auto"})["code"] != key["code"]


def test_few_rows_and_a_cache_that_is_off_leave_no_file(
    write_rows: Callable[..., Path], template: Any, folder: Path
) -> None:
    load(write_rows(*ROWS[:2]), template)
    load_samples(write_rows(*ROWS), template, 64, "drop", sample_cache="off")
    assert not folder.exists()


def test_nothing_is_written_beside_the_inputs(
    write_rows: Callable[..., Path], template: Any, folder: Path
) -> None:
    """B55: data and model may be read-only."""
    path = write_rows(*ROWS)
    before = sorted(path.parent.iterdir())
    load(path, template)
    assert sorted(path.parent.iterdir()) == sorted([*before, folder])


def test_faults_and_split_rows_come_back_in_their_places() -> None:
    records = [Record([], f"f:{line}") for line in (1, 2, 3, 4)]
    one = Sample([5, 6, 7], [IGNORED, 6, 7], "f:2")
    two = Sample([8], [IGNORED], "f:2")
    found = list(unpack(pack([TemplateFault("动"), [one, two], [], TemplateFault("")]), records))
    assert found[1:3] == [[one, two], []]
    assert [str(found[0]), str(found[3])] == ["动", ""]


def test_a_label_that_is_not_its_own_token_is_never_kept() -> None:
    with pytest.raises(ValueError, match="another token"):
        pack([[Sample([1, 2], [IGNORED, 3], "f:1")]])
