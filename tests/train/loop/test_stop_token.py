"""A stop token that the checkpoint never learned is found before a run is spent on it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from train.config import RunConfig
from train.data.template import ChatTemplate
from train.errors import EXIT_CONFIG, UserError
from train.loop.model import load_model, load_tokenizer
from train.loop.stop_token import check_stop_token, untrained

STOP, START, BEYOND = 2, 1, 400


@pytest.fixture(scope="module")
def template(tiny: Path) -> ChatTemplate:
    return ChatTemplate(load_tokenizer(tiny))


@pytest.fixture
def model(tiny: Path) -> Any:
    return load_model(tiny, torch.float32, "sdpa")


def rows(model: Any) -> torch.Tensor:
    return model.get_output_embeddings().weight.data


def test_a_sound_checkpoint_has_nothing_to_say(model: Any, template: ChatTemplate) -> None:
    assert check_stop_token(model, template, "error", "--model x") == []


@pytest.mark.parametrize(("other", "name"), [(START, "<.im_start.>"), (BEYOND, "id 400, which no text has")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_that_equals_one_which_nothing_trained_is_an_error_with_the_cure(
    model: Any, template: ChatTemplate, other: int, name: str, dtype: torch.dtype
) -> None:
    rows(model)[other] = rows(model)[STOP] * 1.01
    model.to(dtype)
    with pytest.raises(UserError, match=f"<.im_end.> .id 2. was never .* that of {name}") as caught:
        check_stop_token(model, template, "error", "--model x")
    assert caught.value.exit_code == EXIT_CONFIG
    assert "instruct checkpoint" in caught.value.hint
    (line,) = check_stop_token(model, template, "allow", "--model x")
    assert line.startswith("warning: --model x: the stop token")


def test_a_row_near_zero_is_untrained(model: Any, template: ChatTemplate) -> None:
    rows(model)[STOP] *= 0.01
    assert "near zero" in str(untrained(rows(model), template))


def test_other_rows_may_be_equal_to_each_other(model: Any, template: ChatTemplate) -> None:
    """Every checkpoint has special tokens that it never saw; the stop token is what counts."""
    rows(model)[3:7] = rows(model)[0]
    rows(model)[BEYOND:] = 0
    assert untrained(rows(model), template) is None


def test_weights_that_are_no_plain_numbers_are_not_judged(template: ChatTemplate) -> None:
    assert untrained(torch.zeros(512, 8, dtype=torch.int8), template) is None


def test_a_run_on_a_base_checkpoint_stops_before_it_trains(
    recipe: dict[str, Any], model: Any, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from train.loop.run import run

    base = tmp_path / "base"
    shutil.copytree(tiny, base)
    rows(model)[:7] = rows(model)[0]
    model.save_pretrained(base)
    with pytest.raises(UserError, match=f"--model {base}: the stop token"):
        run(RunConfig.model_validate({**recipe, "model": base}))
    allowed = {"model": base, "untrained_stop_token": "allow", "max_steps": 1, "output": tmp_path / "two"}
    run(RunConfig.model_validate({**recipe, **allowed}))
    assert "warning: --model" in capsys.readouterr().out
