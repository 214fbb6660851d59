"""A chat template of a file: used, recorded, saved with the adapter, and the same when a run goes on."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from train.config import RunConfig
from train.data.formats import Record
from train.data.template import ChatTemplate
from train.errors import EXIT_CONFIG, UserError
from train.loop import resume
from train.loop.model import find_stop_tokens, load_tokenizer
from train.loop.preflight import check_places
from train.results.opened import ModelOptions, open_checkpoint

OWN = (
    "{{ 'Be brief.\\n' }}{% for m in messages %}"
    "{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
ASKED = Record([{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "f:1")
PARTS: Any = [SimpleNamespace(summary=SimpleNamespace(sha256="sha256:0"))]
"""What is read of loaded data."""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "own.jinja"
    path.write_text(OWN, encoding="utf-8")
    return path


def test_a_run_takes_it_and_the_adapter_keeps_it_for_eval_and_generate(
    recipe: dict[str, Any], own: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from train.loop.run import run

    run(RunConfig.model_validate({**recipe, "chat_template": own, "max_steps": 1}))
    adapter = recipe["output"] / "adapter"
    assert (adapter / "chat_template.jinja").read_text(encoding="utf-8") == OWN
    written = json.loads((recipe["output"] / "run.json").read_text(encoding="utf-8"))
    assert written["recipe"]["chat_template"] == str(own)
    capsys.readouterr()
    opened = open_checkpoint(ModelOptions(recipe["model"], adapter, device="cpu"), sys.stdout)
    assert opened.template.prompt(ASKED).startswith("Be brief.\n")
    assert f"chat template: that of the adapter, {adapter}" in capsys.readouterr().out
    base = open_checkpoint(ModelOptions(recipe["model"], None, device="cpu"), sys.stdout)
    assert "Be brief" not in base.template.prompt(ASKED)


def test_another_template_of_that_name_is_refused_when_a_run_goes_on(
    recipe: dict[str, Any], own: Path
) -> None:
    config = RunConfig.model_validate({**recipe, "chat_template": own})
    start: Any = SimpleNamespace(content={"inputs": resume.identify(config, PARTS)}, step=3)
    resume.require_same_inputs(start, resume.identify(config, PARTS), config)
    own.write_text(OWN + " ", encoding="utf-8")
    with pytest.raises(UserError, match="own.jinja: is not that of the run so far"):
        resume.require_same_inputs(start, resume.identify(config, PARTS), config)


def test_a_run_from_before_there_was_such_a_field_goes_on(recipe: dict[str, Any]) -> None:
    config = RunConfig.model_validate(recipe)
    inputs = resume.identify(config, PARTS)
    older = {name: value for name, value in inputs.items() if name != "chat_template"}
    start: Any = SimpleNamespace(content={"inputs": older}, step=3)
    resume.require_same_inputs(start, inputs, config)


def test_a_file_that_is_missing_is_named_before_anything_is_loaded(recipe: dict[str, Any]) -> None:
    config = RunConfig.model_validate({**recipe, "chat_template": "none.jinja"})
    with pytest.raises(UserError, match="chat_template none.jinja: cannot be read") as caught:
        check_places(config)
    assert caught.value.exit_code == EXIT_CONFIG


def test_a_fault_of_a_template_s_file_names_the_file(tiny: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jinja"
    broken.write_text("{% if add_generation_prompt %}x{% endif %}{{ messages[0].content }}", encoding="utf-8")
    template = ChatTemplate(load_tokenizer(tiny), chat_template=broken)
    with pytest.raises(UserError, match=r"^error: chat_template .*broken.jinja: the chat template renders"):
        find_stop_tokens(template, tiny)


def test_evaluation_can_count_the_last_turn_alone(tiny: Path) -> None:
    options = ModelOptions(tiny, device="cpu", train_on="last")
    assert open_checkpoint(options, sys.stdout).template.train_on == "last"
