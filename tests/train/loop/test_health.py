"""Health checks: each one speaks up on the fault that it is there for."""

from __future__ import annotations

import math

import pytest
import torch

from train.errors import EXIT_TRAINING, UserError
from train.loop import health


@pytest.mark.parametrize(
    ("loss", "word"),
    [
        (math.log(512), "an untrained model starts here"),
        (math.log(512) * 1.04, "an untrained model starts here"),
        (math.log(512) * 1.06, "warning"),
        (2.0, "knows something already"),
        (0.05, "almost nothing to learn"),
    ],
)
def test_the_first_loss_is_judged_against_uniform_guessing(loss: float, word: str) -> None:
    line = health.judge_first_loss(loss, 512)
    assert word in line
    assert "ln V = 6.238" in line


def test_a_tensor_that_never_gets_a_gradient_is_named() -> None:
    parameters = {name: torch.nn.Parameter(torch.ones(2)) for name in ("used", "zero", "unused")}
    (parameters["used"].sum() + 0 * parameters["zero"].sum()).backward()
    check = health.GradientCheck(parameters)
    check.look()
    assert check.line() == "1 of 3 adapter tensors got a gradient"
    finding = check.finding(2)
    assert finding is not None
    assert {"unused", "zero"} <= set(finding.seen.splitlines())
    assert finding.level == "stop"


@pytest.mark.parametrize(
    ("used", "is_told_of_settings"),
    [
        ([], True),
        (["0.q.lora_B.default.weight", "1.q.lora_B.default.weight"], True),
        (["0.q.lora_A.default.weight", "0.q.lora_B.default.weight"], False),
        (["0.q.lora_A.default.weight", "1.q.lora_A.default.weight", "0.q.lora_B.default.weight"], False),
    ],
)
def test_where_no_tensor_of_a_kind_gets_a_gradient_the_settings_are_named_first(
    used: list[str], is_told_of_settings: bool
) -> None:
    names = [f"{layer}.q.lora_{side}.default.weight" for layer in (0, 1) for side in "AB"]
    parameters = {name: torch.nn.Parameter(torch.ones(2)) for name in names}
    for name in used:
        parameters[name].sum().backward()
    check = health.GradientCheck(parameters)
    check.look()
    finding = check.finding(2)
    assert finding is not None
    words = all(
        name in finding.cure for name in ("learning_rate", "adam_epsilon", "max_grad_norm", "dropout")
    )
    assert words == is_told_of_settings
    assert "target_modules" in finding.cure
    assert ("these layers" in finding.cause) != is_told_of_settings


def test_gradients_of_all_tensors_pass_even_over_two_steps() -> None:
    parameters = {name: torch.nn.Parameter(torch.ones(2)) for name in ("a", "b")}
    check = health.GradientCheck(parameters)
    for name in ("a", "b"):
        parameters[name].sum().backward()
        check.look()
    assert check.finding(2) is None


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_figure_that_is_not_finite_stops_the_run(value: float) -> None:
    with pytest.raises(UserError, match="step 3: loss is") as caught:
        health.require_finite(3, loss=value, grad_norm=1.0)
    assert caught.value.exit_code == EXIT_TRAINING
    health.require_finite(3, loss=1.0, grad_norm=0.0)


def test_an_adapter_that_did_not_move_stops_the_run() -> None:
    before = {"a": torch.zeros(2), "b": torch.ones(2)}
    with pytest.raises(UserError, match="no tensor changed"):
        health.require_moved(before, {name: tensor.clone() for name, tensor in before.items()})
    health.require_moved(before, {"a": torch.zeros(2), "b": torch.full((2,), 2.0)})


def test_an_overflow_makes_no_gradient_for_a_tensor_that_has_none() -> None:
    parameters = {name: torch.nn.Parameter(torch.ones(2)) for name in ("used", "dead")}
    (parameters["used"].sum() * math.inf + 0 * parameters["dead"].sum()).backward()
    torch.nn.utils.clip_grad_norm_(parameters.values(), 1.0)
    check = health.GradientCheck(parameters)
    assert not check.look()
    assert check.without == {"used", "dead"}


def test_a_tensor_that_dropout_may_have_left_out_is_not_called_dead_too_early() -> None:
    parameters = {
        "one block": torch.nn.Parameter(torch.ones(1, 6)),
        "many": torch.nn.Parameter(torch.ones(64, 6)),
    }
    check = health.GradientCheck(parameters, block_dropout=0.1)
    check.look()
    first = check.finding(1)
    assert first is not None
    assert first.seen.splitlines()[1:] == ["many"]
    for _ in range(8):  # 0.1 ** 9 is one in a billion
        check.look()
    last = check.finding(9)
    assert last is not None
    assert set(last.seen.splitlines()[1:]) == {"many", "one block"}
