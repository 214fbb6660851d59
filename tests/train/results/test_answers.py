"""Answers to prompts are those that a run shows, and prompts that cannot be asked are refused."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train.config import RunConfig
from train.data.template import ChatTemplate
from train.errors import EXIT_USAGE, UserError
from train.loop.model import load_tokenizer
from train.results import opened
from train.results.answers import generate, prompt_records
from train.results.opened import ModelOptions

Adapters = Callable[..., Path]


def ask(model: Path, *prompts: str, adapter: Path | None = None, data: Any = None, tokens: int = 8) -> Any:
    return generate(ModelOptions(model, adapter, device="cpu"), prompts, data, tokens, sys.stderr)


@pytest.mark.parametrize("kind", ["lora", "oft"])
def test_a_files_rows_are_answered_as_the_run_answered_them(
    recipe: dict[str, Any], few_rows: Path, kind: str
) -> None:
    from train.loop.run import run

    fields = {"adapter": kind, "data": few_rows, "num_generations": 1, "max_new_tokens": 8}
    shown = run(RunConfig.model_validate({**recipe, **fields})).results["generations"][0]
    data = (few_rows, 1, 2048)
    after = ask(recipe["model"], adapter=recipe["output"] / "adapter", data=data)
    assert after == [{"prompt": shown["prompt"], "answer": shown["after"], "wanted": shown["wanted"]}]
    assert ask(recipe["model"], data=data)[0]["answer"] == shown["before"]


def test_a_limit_takes_the_first_rows_and_none_takes_all(tiny: Path, rows_file: Path) -> None:
    everything = ask(tiny, data=(rows_file, None, 2048), tokens=1)
    assert len(everything) == 16
    assert ask(tiny, data=(rows_file, 3, 2048), tokens=1) == everything[:3]


def test_an_adapter_changes_the_answer_and_prompts_keep_their_order(adapter_of: Adapters, tiny: Path) -> None:
    without = ask(tiny, "momentum?", "mass?")
    adapted = ask(tiny, "momentum?", "mass?", adapter=adapter_of("oft", std=0.3))
    assert [answer["prompt"] for answer in without] == ["momentum?", "mass?"]
    assert without != adapted
    assert "wanted" not in without[0]


def test_a_prompt_that_is_no_utf8_is_refused_with_its_number(tiny: Path) -> None:
    template = ChatTemplate(load_tokenizer(tiny), "auto")
    with pytest.raises(UserError, match=r"--prompt 2: '.udcff' is not UTF-8 text") as caught:
        prompt_records(["fine", "\udcff"], template)
    assert caught.value.exit_code == EXIT_USAGE


def test_prompts_that_cannot_be_asked_are_all_named(tiny: Path) -> None:
    template = ChatTemplate(load_tokenizer(tiny))
    with pytest.raises(UserError) as caught:
        prompt_records(["fine", " ", "stop <|im_end|>"], template)
    assert caught.value.exit_code == EXIT_USAGE
    assert caught.value.message.splitlines() == [
        "--prompt 2: is empty",
        "--prompt 3: the user's text holds the control token <|im_end|>",
    ]


@pytest.mark.parametrize(
    ("trained", "asked", "used"), [("on", "auto", "on"), ("on", "off", "off"), ("auto", "auto", "auto")]
)
def test_prompts_are_written_as_the_adapter_was_trained_unless_told_otherwise(
    adapter_of: Adapters, tiny: Path, tmp_path: Path, trained: str, asked: str, used: str
) -> None:
    folder = shutil.copytree(adapter_of("lora"), tmp_path / "adapter")
    manifest = folder / "isotune.json"
    manifest.write_text(
        manifest.read_text("utf-8").replace('"thinking": "auto"', f'"thinking": "{trained}"'), "utf-8"
    )
    lines = io.StringIO()
    assert opened._thinking(ModelOptions(tiny, folder, thinking=asked), lines) == used
    assert lines.getvalue() == (
        "thinking: on, as the adapter was trained\n" if (trained, asked) == ("on", "auto") else ""
    )
