"""The recipe's schema: strict, every fault at once, the command line over the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from train.config import RunConfig
from train.data.settings import DataFields
from train.errors import EXIT_CONFIG, EXIT_USAGE, UserError
from train.recipe import build_config, parse_assignment

FLAGS = {"adapter": "lora", "model": "m", "data": "d", "output": "o"}


def test_every_fault_is_reported_at_once_with_its_origin(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("adapter: lorra\nlearning_rat: 1e-4\nlora: {r: 0}\n", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        build_config(recipe, {"model": "m"}, ["oft.block=3"])
    lines = caught.value.message.splitlines()
    assert caught.value.exit_code == EXIT_CONFIG
    assert any("recipe.yaml: adapter" in line and "'lorra'" in line for line in lines)
    assert any("did you mean learning_rate?" in line for line in lines)
    assert any("recipe.yaml: lora.r" in line for line in lines)
    assert any("--set oft.block: no such field; did you mean oft." in line for line in lines)
    assert any(line.startswith("data: not given") for line in lines)
    assert any(line.startswith("output: not given") for line in lines)


def test_yaml_text_that_is_a_number_is_a_number(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("learning_rate: 1e-4\n", encoding="utf-8")
    assert build_config(recipe, FLAGS, []).learning_rate == 1e-4


@pytest.mark.parametrize("text", ["lora.r=yes", "learning_rate=on", "max_steps=true"])
def test_yaml_booleans_are_no_numbers(text: str) -> None:
    with pytest.raises(UserError, match="a number is due"):
        build_config(None, FLAGS, [text])


@pytest.mark.parametrize(
    "text", ["learning_rate=nan", "learning_rate=.inf", "learning_rate=0", "max_steps=0", "lora.r=1.5"]
)
def test_values_that_cannot_train_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--set"):
        build_config(None, FLAGS, [text])


def test_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("adapter: oft\nseed: 1\nlora: {r: 4, lora_alpha: 4}\n", encoding="utf-8")
    config = build_config(recipe, FLAGS, ["seed=7", "lora.r=16"])
    assert (config.adapter, config.seed, config.lora.r, config.lora.lora_alpha) == ("lora", 7, 16, 4)


def test_a_value_given_twice_on_the_command_line_is_refused() -> None:
    with pytest.raises(UserError, match="already given by --adapter"):
        build_config(None, FLAGS, ["adapter=oft"])
    with pytest.raises(UserError, match="already given by --set seed"):
        build_config(None, FLAGS, ["seed=1", "seed=2"])


def test_a_key_given_twice_in_the_file_is_refused_with_its_line(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("seed: 1\nadapter: lora\nseed: 2\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"recipe.yaml:3: .*'seed' is given twice"):
        build_config(recipe, FLAGS, [])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [1", "not a valid recipe"),
        (b"- 1\n", "is a mapping"),
        (b"\xff\xfe\xff", "not UTF-8"),
        (b"{a b", "not a valid"),
    ],
)
def test_a_file_that_is_no_recipe_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        build_config(recipe, FLAGS, [])
    assert caught.value.hint


@pytest.mark.parametrize("content", ["seed:\t1\n\tb: 2\n", "a: \0\n", "seed: 1\nseed: 2\n"])
def test_a_recipe_that_is_no_yaml_has_a_hint(tmp_path: Path, content: str) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match="not a valid recipe") as caught:
        build_config(recipe, FLAGS, [])
    assert "spaces" in caught.value.hint and "once" in caught.value.hint


def test_an_empty_config_is_said_to_be_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="an unset variable"):
        build_config(Path(), FLAGS, [])


def test_a_missing_recipe_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        build_config(tmp_path / "none.yaml", FLAGS, [])


def test_an_assignment_without_a_value_is_a_usage_error() -> None:
    with pytest.raises(UserError) as caught:
        parse_assignment("lora.r")
    assert caught.value.exit_code == EXIT_USAGE


def test_a_scalar_has_no_fields_below_it() -> None:
    with pytest.raises(UserError, match="seed has no fields") as caught:
        build_config(None, {**FLAGS}, ["seed=3", "seed.deep=1"])
    assert caught.value.hint


def test_every_shipped_recipe_is_complete() -> None:
    folder = Path(__file__).parents[2] / "train" / "recipes"
    recipes = sorted(folder.glob("*.yaml"))
    assert recipes
    for recipe in recipes:
        flags = FLAGS if recipe.stem == "tiny" else {"model": "m", "data": "d", "output": "o"}
        assert build_config(recipe, flags, []).adapter == ("oft" if recipe.stem.startswith("oft") else "lora")
        assert recipe.read_text("utf-8").startswith("# "), "what it is for, and for whom"


def test_a_shipped_recipe_is_found_by_its_name_but_never_before_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert build_config(Path("oft"), {**FLAGS, "adapter": None}, []).adapter == "oft"
    (tmp_path / "oft").write_text("adapter: lora\n", encoding="utf-8")
    assert build_config(Path("oft"), {**FLAGS, "adapter": None}, []).adapter == "lora"
    with pytest.raises(UserError) as caught:
        build_config(Path("none"), FLAGS, [])
    assert "oft, oft-block64, tiny" in caught.value.hint


def test_every_field_has_a_description_or_a_name_of_its_library() -> None:
    ours = {"adapter", "model", "data", "output", "device", "precision", *DataFields.model_fields}
    assert all(RunConfig.model_fields[name].description for name in ours)


def test_settings_of_the_other_adapter_have_no_place_on_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--set oft.oft_block_size: has no effect, the adapter is lora"):
        build_config(None, FLAGS, ["oft.oft_block_size=7"])
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("oft: {oft_block_size: 7}\nlora:\n", encoding="utf-8")
    assert build_config(recipe, FLAGS, ["lora.r=3"]).lora.r == 3


@pytest.mark.parametrize("text", ["seed=2024-13-45", "seed=" + "[" * 3000, "num_train_epochs=1e308"])
def test_values_that_yaml_or_the_trainer_choke_on_are_faults_of_the_field(text: str) -> None:
    with pytest.raises(UserError, match="--set"):
        build_config(None, FLAGS, [text])


def test_a_recipe_with_strange_keys_is_named(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    for content in ("[1, 2]: 3\n", "seed: 2024-13-45\n"):
        recipe.write_text(content, encoding="utf-8")
        with pytest.raises(UserError, match="recipe.yaml"):
            build_config(recipe, FLAGS, [])


@pytest.mark.parametrize(
    ("settings", "faults"),
    [
        (
            ["oft_num_blocks=4", "oft_block_size=32"],
            ["oft.oft_num_blocks 4 and oft.oft_block_size 32 are both given"],
        ),
        (["oft_num_blocks=4", "oft_block_size=auto"], ["oft.oft_block_size auto are both given"]),
        (["num_cayley_neumann_terms=6"], ["num_cayley_neumann_terms has no effect: oft.cayley is exact"]),
        (["cayley=exact", "on_drift=stop"], ["on_drift has no effect: oft.cayley is exact"]),
        (["eps=1e-4"], ["eps has no effect: oft.coft is off"]),
        (["eps=1e-4", "coft=false", "on_drift=exact"], ["eps has no effect", "on_drift has no effect"]),
    ],
)
def test_oft_settings_that_contradict_each_other_are_all_named(
    settings: list[str], faults: list[str]
) -> None:
    with pytest.raises(UserError) as caught:
        build_config(None, {**FLAGS, "adapter": "oft"}, [f"oft.{text}" for text in settings])
    assert caught.value.exit_code == EXIT_CONFIG
    assert all(fault in caught.value.message for fault in faults)


@pytest.mark.parametrize(
    "settings",
    [
        ["oft_num_blocks=4"],
        ["oft_block_size=auto"],
        ["coft=true", "eps=1e-4"],
        ["coft=true"],
        ["cayley=series", "num_cayley_neumann_terms=6", "on_drift=exact"],
    ],
)
def test_oft_settings_that_go_together_are_taken(settings: list[str]) -> None:
    config = build_config(None, {**FLAGS, "adapter": "oft"}, [f"oft.{text}" for text in settings])
    for text in settings:
        name, value = text.split("=")
        assert str(getattr(config.oft, name)).lower() in (value, "0.0001")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("oft_block_size", "1"),
        ("oft_block_size", "nearest"),
        ("oft_block_size", "true"),
        ("oft_num_blocks", "0"),
        ("num_cayley_neumann_terms", "1"),
        ("eps", "0"),
        ("module_dropout", "1"),
        ("cayley", "neumann"),
        ("on_drift", "warn"),
    ],
)
def test_oft_settings_that_mean_nothing_are_refused(name: str, value: str) -> None:
    with pytest.raises(UserError, match=f"--set oft.{name}"):
        build_config(None, {**FLAGS, "adapter": "oft"}, [f"oft.{name}={value}"])


@pytest.mark.parametrize("value", ["auto", "vision", "[q_proj, visual.blocks.*.attn.qkv]"])
def test_targets_are_words_or_a_list(value: str) -> None:
    config = build_config(None, FLAGS, [f"target_modules={value}"])
    assert config.target_modules in (value, ["q_proj", "visual.blocks.*.attn.qkv"])


def test_one_target_or_several_with_commas_are_a_list() -> None:
    assert build_config(None, FLAGS, ["target_modules=q_proj"]).target_modules == ["q_proj"]
    several = build_config(None, FLAGS, ["target_modules=q_proj, visual.blocks.*.attn.qkv"]).target_modules
    assert several == ["q_proj", "visual.blocks.*.attn.qkv"]


def test_what_a_trained_adapter_decides_is_not_judged_by_the_defaults_of_a_fresh_one() -> None:
    flags = {**FLAGS, "adapter": "oft"}
    settings = ["oft.on_drift=exact", "oft.eps=0.2", "init_adapter=/run/adapter"]
    assert build_config(None, flags, settings).oft.on_drift == "exact"
    with pytest.raises(UserError, match="on_drift has no effect"):
        build_config(None, flags, [*settings, "oft.cayley=exact"])
