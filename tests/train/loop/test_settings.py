"""Options of a run that contradict each other or do nothing are named before anything is loaded."""

from __future__ import annotations

import pytest

from train.config import RunConfig
from train.errors import EXIT_CONFIG, UserError
from train.recipe import build_config

FLAGS = {"adapter": "lora", "model": "m", "data": "d", "output": "o"}


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        (["warmup_steps=3", "warmup_ratio=0.1"], "warmup_steps 3 and warmup_ratio 0.1 are both given"),
        (["lr_scheduler_type=constant", "warmup_steps=3"], "warmup_steps 3 has no effect"),
        (["lr_scheduler_type=constant", "warmup_ratio=0.2"], "warmup_ratio 0.2 has no effect"),
        (["lr_scheduler_kwargs={power: 2}"], "lr_scheduler_kwargs.power: is no setting of cosine"),
        (
            ["lr_scheduler_type=polynomial", "lr_scheduler_kwargs={powr: 2}"],
            "is no setting of polynomial; did you mean power?",
        ),
        (["lr_scheduler_type=linear", "lr_scheduler_kwargs={power: 2}"], "it has none"),
        (["lr_scheduler_type=cosine_with_min_lr"], "cosine_with_min_lr needs min_lr_rate or min_lr"),
        (
            ["lr_scheduler_type=cosine_with_min_lr", "lr_scheduler_kwargs={min_lr: 0, min_lr_rate: 0.1}"],
            "needs min_lr_rate or min_lr, not both",
        ),
        (["lr_scheduler_type=warmup_stable_decay"], "warmup_stable_decay needs num_decay_steps"),
        (
            ["lr_scheduler_type=warmup_stable_decay", "lr_scheduler_kwargs={num_decay_steps: 1.5}"],
            "num_decay_steps: 1.5 is negative or no whole number",
        ),
        (
            ["lr_scheduler_type=cosine_with_min_lr", "lr_scheduler_kwargs={min_lr_rate: -1}"],
            "min_lr_rate: -1.0 is negative",
        ),
        (["lr_scheduler_kwargs={num_cycles: 1e308}"], "num_cycles: 1e+308 is more than 1e+06"),
        (
            ["lr_scheduler_type=warmup_stable_decay", "lr_scheduler_kwargs={num_decay_steps: 1e308}"],
            "num_decay_steps: 1e+308 is more than 1e+09",
        ),
        (
            ["lr_scheduler_type=polynomial", "learning_rate=1e-8"],
            "lr_scheduler_kwargs.lr_end: 1e-07 (polynomial's own) is not below learning_rate 1e-08",
        ),
        (
            ["lr_scheduler_type=polynomial", "lr_scheduler_kwargs={lr_end: 1e-3}"],
            "lr_scheduler_kwargs.lr_end: 0.001 is not below learning_rate 0.0002",
        ),
        (
            ["lr_scheduler_type=cosine_with_min_lr", "lr_scheduler_kwargs={min_lr: 1e-3}"],
            "lr_scheduler_kwargs.min_lr: 0.001 is not below learning_rate 0.0002",
        ),
        (
            ["lr_scheduler_type=cosine_with_min_lr", "lr_scheduler_kwargs={min_lr_rate: 5}"],
            "min_lr_rate: 5 is more than 1",
        ),
        (["keep_best=true"], "keep_best True needs eval_data"),
        (["eval_steps=5"], "eval_steps 5 needs eval_data"),
        (["early_stopping_patience=2"], "early_stopping_patience 2 needs eval_data"),
        (["best_by=code", "keep_best=true"], "best_by code needs eval_data"),
        (["eval_data={a: x, b: y}", "keep_best=true", "best_by=c"], "no set c; it has a, b"),
        (["eval_data={a: x, b: y}", "best_by=a"], "best_by a has no effect"),
        (["eval_data=x", "early_stopping_threshold=0.1"], "without early_stopping_patience"),
    ],
)
def test_options_that_contradict_each_other_are_named(settings: list[str], fault: str) -> None:
    with pytest.raises(UserError) as caught:
        build_config(None, FLAGS, settings)
    assert caught.value.exit_code == EXIT_CONFIG
    assert fault in caught.value.message


def test_a_lowest_rate_is_not_compared_with_a_rate_that_devices_multiply() -> None:
    asked = ["lr_scheduler_type=polynomial", "lr_scheduler_kwargs={lr_end: 3e-4}"]
    assert build_config(None, FLAGS, [*asked, "lr_scale_with_world_size=linear"])
    assert build_config(None, FLAGS, [*asked, "learning_rate=4e-4"])


def test_all_contradictions_come_together_those_of_the_adapter_too() -> None:
    settings = ["keep_best=true", "warmup_steps=3", "warmup_ratio=0.1", "oft.eps=1"]
    with pytest.raises(UserError) as caught:
        build_config(None, FLAGS | {"adapter": "oft"}, settings)
    assert len(caught.value.message.splitlines()) == 3


@pytest.mark.parametrize("value", ["-0.1", "1", "true"])
def test_a_warmup_that_is_no_share_is_refused(value: str) -> None:
    with pytest.raises(UserError, match="--set warmup_ratio"):
        build_config(None, FLAGS, [f"warmup_ratio={value}"])


@pytest.mark.parametrize(
    "name",
    ["max_steps", "warmup_steps", "save_steps", "logging_steps", "max_length", "max_new_tokens", "lora.r"],
)
def test_a_number_that_nobody_can_mean_is_refused_with_its_bound(name: str) -> None:
    assert build_config(None, FLAGS, [f"{name}=1000000"])
    with pytest.raises(UserError, match=f"--set {name}: .*less than or equal to"):
        build_config(None, FLAGS, [f"{name}={'9' * 400}"])


@pytest.mark.parametrize("value", ["0", "true", "never", "1.5"])
def test_evaluations_are_every_so_many_steps_or_each_epoch(value: str) -> None:
    with pytest.raises(UserError, match="eval_steps"):
        build_config(None, FLAGS, ["eval_data=x", f"eval_steps={value}"])


def test_off_is_off_though_yaml_reads_it_as_false() -> None:
    assert build_config(None, FLAGS, ["lr_scale_with_world_size=off"]).lr_scale_with_world_size == "off"


def test_a_plain_path_is_the_set_eval_and_a_mapping_names_its_own() -> None:
    assert list(build_config(None, FLAGS, ["eval_data=x"]).eval_sets()) == ["eval"]
    sets = build_config(None, FLAGS, ["eval_data.b=x", "eval_data.a=y"]).eval_sets()
    assert {name: str(path) for name, path in sets.items()} == {"b": "x", "a": "y"}
    assert list(sets) == ["b", "a"]


def test_every_field_of_the_schema_has_a_description() -> None:
    schema = RunConfig.model_json_schema()
    parts = [schema, *schema["$defs"].values()]
    bare = [
        name for part in parts for name, field in part["properties"].items() if not field.get("description")
    ]
    assert bare == []
    assert len(schema["properties"]) > 40
