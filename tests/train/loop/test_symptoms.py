"""Symptoms in lines of metrics: each one is seen where it is, and not in a run that is well."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest

from train.loop import symptoms
from train.loop.metrics import StepMetrics

UNIFORM = math.log(151_936)


def lines(losses: Sequence[float], every: int = 1, **fields: Sequence[float]) -> list[StepMetrics]:
    """Lines of metrics with these losses, `every` steps apart."""
    made = []
    for index, loss in enumerate(losses):
        values = {"grad_norm": 1.0, "learning_rate": 1e-4, "num_target_tokens": 500 * every}
        values |= {name: column[index] for name, column in fields.items()}
        step = 1 if index == 0 else index * every + (every == 1)
        fixed = {"step": step, "epoch": 0.0, "num_tokens": 900, "seconds": 1.0, "peak_memory_bytes": 1}
        made.append(StepMetrics(loss=loss, **fixed, **values))  # type: ignore[arg-type]
    return made


def names(made: list[StepMetrics], warmup: int = 0) -> list[str]:
    return [finding.name for finding in symptoms.judge(made, UNIFORM, warmup)]


def all_names(made: list[StepMetrics]) -> set[str]:
    """What is found at any line, as a run would find it."""
    return {name for count in range(1, len(made) + 1) for name in names(made[:count])}


def falling(count: int, noise: float = 0.15, seed: int = 0) -> list[float]:
    """A fine-tune as it should be: 1.8 to 0.9 nats, with the noise of small batches."""
    draw = random.Random(seed)
    return [(0.9 + 0.9 * math.exp(-step / 80)) * math.exp(draw.gauss(0, noise)) for step in range(count)]


@pytest.mark.parametrize("seed", range(5))
def test_a_run_that_is_well_has_no_warning(seed: int) -> None:
    draw = random.Random(seed)
    norms = [0.5 * math.exp(draw.gauss(0, 0.4)) for _ in range(1000)]
    found = all_names(lines(falling(1000, seed=seed), grad_norm=norms))
    assert found <= {"flat_loss"}


def test_the_scratch_curve_of_the_field_notes_has_no_warning() -> None:
    """11.93, about 5 by step 10, 2.5 by step 50, 1.6 by step 500; a line every ten steps."""
    losses = [1.6 + 10.3 * math.exp(-step / 9) + 0.9 * math.exp(-step / 90) for step in range(0, 510, 10)]
    assert not all_names(lines(losses, every=10))


def test_a_grad_norm_of_zero_is_a_warning_and_then_a_stop() -> None:
    assert not names(lines([2.0] * 4, grad_norm=[1, 1, 0, 0]))
    assert names(lines([2.0] * 5, grad_norm=[1, 1, 0, 0, 0])) == ["no_gradient"]
    found = symptoms.no_gradient(lines([2.0] * 11, grad_norm=[1, *[0] * 10]))
    assert found is not None
    assert found.level == "stop"


def test_one_spike_is_a_note_and_three_are_exploding_gradients() -> None:
    calm = [1.0, 0.8, 1.2] * 5
    assert not names(lines([2.0] * 16, grad_norm=[*calm, 9.0]))
    assert names(lines([2.0] * 16, grad_norm=[*calm, 11.0])) == ["gradient_spike"]
    assert names(lines([2.0] * 18, grad_norm=[*calm, 11.0, 30.0, 90.0])) == ["exploding_gradients"]
    assert not names(lines([2.0] * 16, grad_norm=[*calm, math.inf]))  # fp16 skips such a step


def test_the_jump_of_the_field_notes_is_seen_and_where_it_began() -> None:
    """bf16, step 800: 0.5 to 0.9 and back within 100 steps; a line every ten steps."""
    losses = [1.5, 1.2, 0.9] + [0.5 + 0.02 * (index % 3) for index in range(77)]
    losses += [0.75, 0.9, 0.9, 0.85, 0.7, 0.6, 0.55, 0.5, 0.5]
    made = lines(losses, every=10)
    found = [finding for count in range(1, 90) if (finding := symptoms.jump(made[:count]))]
    assert found[0].step == 800
    assert "loss_jump" not in all_names(made[:80])
    assert "from 0.520 to 0.850" in found[0].seen


def test_a_loss_that_leaves_its_start_upwards_diverges() -> None:
    assert "loss_above_start" in all_names(lines([2.0 + 0.1 * step for step in range(16)]))
    assert not all_names(lines([2.0 + 0.02 * step for step in range(16)]))


@pytest.mark.parametrize(("start", "name"), [(11.9, "stuck_at_uniform"), (2.5, "stuck_at_start")])
def test_a_loss_that_stays_where_it_began_for_hundreds_of_steps_is_stuck(start: float, name: str) -> None:
    losses = [start + 0.01 * (index % 2) for index in range(30)]
    assert not all_names(lines(losses[:20], every=10))
    assert name in names(lines(losses, every=10))
    assert not names(lines(losses, every=10), warmup=100)
    assert not names(lines([start - 0.004 * start * index for index in range(25)], every=10))


def test_a_loss_that_moves_no_more_is_a_note() -> None:
    losses = falling(900, noise=0.0)
    assert names(lines(losses)) == ["flat_loss"]
    assert symptoms.judge(lines(losses), UNIFORM, 0)[0].level == "note"
    assert not names(lines(losses[:300]))


def test_a_learning_rate_of_zero_is_seen() -> None:
    assert not names(lines([2.0] * 5, learning_rate=[0, 0, 0, 0, 1e-9]))
    assert names(lines([2.0] * 6, learning_rate=[1e-4, 0, 0, 0, 0, 0])) == ["zero_learning_rate"]


def test_target_tokens_are_counted_per_step_whatever_is_logged() -> None:
    made = lines([2.0] * 3, every=10, num_target_tokens=[20, 180, 150])
    assert names(made[:1]) == []
    assert names(made) == ["few_target_tokens_in_step"]
    assert names(lines([2.0] * 3, every=10, num_target_tokens=[20, 180, 170])) == []
    found = symptoms.few_targets(lines([0.0], num_target_tokens=[0]))
    assert found is not None
    assert (found.name, found.level) == ("no_target_tokens", "stop")


def test_a_loss_scale_may_come_down_but_not_collapse() -> None:
    first = [1] * 5 + [0] * 55
    scales = [2.0**11] * 60
    assert not all_names(lines([2.0] * 60, num_skipped_steps=first, loss_scale=scales))
    often = [index % 5 == 0 for index in range(60)]
    made = lines([2.0] * 60, num_skipped_steps=often, loss_scale=scales)
    assert names(made) == ["many_skipped_steps"]
    collapsed = lines([2.0] * 20, num_skipped_steps=[1] * 20, loss_scale=[2.0 ** (16 - n) for n in range(20)])
    assert not all_names(collapsed[:17])
    found = symptoms.overflows(collapsed)
    assert found is not None
    assert (found.name, found.level) == ("loss_scale_collapsed", "stop")


Check = Callable[[list[StepMetrics]], object]


@pytest.mark.parametrize("check", [symptoms.flat, symptoms.overflows, symptoms.jump, symptoms.exploding])
def test_no_check_reads_a_long_run_from_its_beginning(check: Check) -> None:
    """They are made at each line: reading all lines would cost the square of the run."""

    class Tail(list[StepMetrics]):
        def __iter__(self) -> object:  # type: ignore[override]
            raise AssertionError("all lines were read")

    check(Tail(lines([1.0] * 3000)))
