"""What a recipe says of data: sources with weights, evaluation sets, switches as YAML reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from train.config import RunConfig
from train.errors import UserError
from train.recipe import build_config

FLAGS = {"adapter": "lora", "model": "m", "data": "d", "output": "o"}


def test_data_is_a_path_or_a_list_of_paths_and_of_weighted_ones(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("data: [a.jsonl, {path: b, weight: 2.5}]\n", encoding="utf-8")
    config = build_config(recipe, {**FLAGS, "data": None}, [])
    assert [(str(source.path), source.weight) for source in config.data] == [("a.jsonl", 1.0), ("b", 2.5)]
    assert config.model_dump(mode="json")["data"][1] == {"path": "b", "weight": 2.5}
    plain = build_config(None, FLAGS, [])
    assert [source.path for source in plain.data] == [Path("d")]
    assert plain.model_dump(mode="json")["data"] == "d"
    assert len(build_config(recipe, {**FLAGS, "data": ["x", "y", "z"]}, []).data) == 3
    assert build_config(None, {**FLAGS, "data": None}, ["data=[{path: a, weight: 3}]"]).data[0].weight == 3
    again = RunConfig.model_validate(config.model_dump(mode="json", exclude_unset=True))
    assert again.data == config.data


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("data: []", "data: List should have at least 1 item"),
        ("data: [{path: a, weight: 0}]", "data.0.weight: Input should be greater than 0, not 0"),
        ("data: [{path: a, weigth: 2}]", "data.0.weigth: no such field"),
        ("data: [a, {weight: 2}]", "data.1.path: not given"),
        ("data: [a, 3]", "data.1: Input should be a valid dictionary"),
        ("data: {weight: 2}", "recipe.yaml: data.0.path: not given"),
        ("eval_data: {one: 3}", "recipe.yaml: eval_data: one: 3 is no path"),
        ("eval_data: {one: }", "recipe.yaml: eval_data: one: None is no path"),
        ("eval_data: [a.jsonl]", "recipe.yaml: eval_data: ['a.jsonl'] is no path; several sets are {name: "),
        ("eval_data: {1: a}", "recipe.yaml: eval_data: the name 1 is no text; quote it"),
        ("eval_data: ''", "recipe.yaml: eval_data: is empty"),
        ('data: "a\\0b"', "recipe.yaml: data.0.path: holds a null byte"),
        ('eval_data: "a\\0b"', "recipe.yaml: eval_data: holds a null byte"),
        (
            'eval_data: {one: "a\\0b", two: ""}',
            "eval_data: one: holds a null byte, which no path can; two: is em",
        ),
        ('chat_template: "a\\0b"', "recipe.yaml: chat_template: holds a null byte"),
        ('chat_template: "\\uD800"', "recipe.yaml: chat_template: holds half a character"),
    ],
)
def test_a_list_of_sources_that_is_wrong_says_which_entry(tmp_path: Path, text: str, fault: str) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text, encoding="utf-8")
    flags = {**FLAGS, "data": None} if text.startswith("data") else FLAGS
    with pytest.raises(UserError) as caught:
        build_config(recipe, flags, [])
    assert fault in caught.value.message
    assert "function-" not in caught.value.message
    assert len(caught.value.message.splitlines()) == 1
    assert "--path" not in caught.value.message


def test_eval_data_is_one_set_or_several_by_name() -> None:
    assert build_config(None, FLAGS, []).eval_sets() == {}
    assert build_config(None, {**FLAGS, "eval_data": "e"}, []).eval_sets() == {"eval": Path("e")}
    named = build_config(None, FLAGS, ["eval_data={one: a, two: b}"])
    assert named.eval_sets() == {"one": Path("a"), "two": Path("b")}


def test_the_schema_says_both_forms_of_data() -> None:
    forms = RunConfig.model_json_schema()["properties"]["data"]["anyOf"]
    assert [form["type"] for form in forms] == ["string", "array"]


def test_the_cache_of_samples_can_be_switched_off_as_yaml_reads_it() -> None:
    assert build_config(None, FLAGS, ["sample_cache=off"]).sample_cache == "off"
    with pytest.raises(UserError, match="sample_cache"):
        build_config(None, FLAGS, ["sample_cache=on"])


@pytest.mark.parametrize(
    ("given", "meant"), [("on", "on"), ("off", "off"), ("'off'", "off"), ("auto", "auto")]
)
def test_on_and_off_are_the_switch_although_yaml_reads_booleans(
    given: str, meant: str, tmp_path: Path
) -> None:
    assert build_config(None, FLAGS, [f"thinking={given}"]).thinking == meant
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"thinking: {given}\n", encoding="utf-8")
    assert build_config(recipe, FLAGS, []).thinking == meant


def test_an_entry_of_data_that_is_wrong_is_named_on_the_command_line_too() -> None:
    with pytest.raises(UserError, match=r"--set data: data.1.weight: Input should be greater than 0, not 0"):
        build_config(None, {**FLAGS, "data": None}, ["data=[a, {path: b, weight: 0}]"])


def test_bytes_of_a_file_name_that_are_no_text_are_a_path_all_the_same() -> None:
    assert build_config(None, {**FLAGS, "data": "\udcff.jsonl"}, []).data[0].path == Path("\udcff.jsonl")


def test_a_value_of_any_length_is_told_in_a_line() -> None:
    with pytest.raises(UserError) as caught:
        build_config(None, FLAGS, ["seed=" + "x" * 10_000_000])
    assert "--set seed: Input should be a valid integer" in caught.value.message
    assert "10000002 characters" in caught.value.message
    assert len(caught.value.message) < 400
