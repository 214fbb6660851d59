"""Every sample is in exactly one batch of an epoch, within the budget, and always in the same one."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest

from train.data.packing import Budget, EpochBatches, check_lengths, in_order
from train.data.template import Sample
from train.errors import EXIT_CONFIG, UserError

draw = random.Random(0)
LENGTHS = [min(670, max(8, int(draw.lognormvariate(5, 0.6)))) for _ in range(700)]
BUDGETS = [Budget(4), Budget(1, 1024), Budget(1, 1024, packed=False), Budget(3, 670)]


def batches(lengths: list[int], budget: Budget, epoch: int = 0, rank: int = 0, num_ranks: int = 1):
    return EpochBatches(lengths, budget, 42, lambda: epoch, rank, num_ranks)


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_an_epoch_has_each_sample_once_and_keeps_to_the_budget(budget: Budget, num_ranks: int) -> None:
    for epoch in (0, 1, 9):
        ranks = [list(batches(LENGTHS, budget, epoch, rank, num_ranks)) for rank in range(num_ranks)]
        assert {len(rank) for rank in ranks} == {len(batches(LENGTHS, budget, num_ranks=num_ranks))}
        rows = [row for rank in ranks for row in rank]
        assert sorted(index for row in rows for index in row) == list(range(len(LENGTHS)))
        for row in filter(None, rows):
            taken = [LENGTHS[index] for index in row]
            assert budget.takes(max(taken), sum(taken), len(taken))


@pytest.mark.parametrize("budget", BUDGETS)
def test_epochs_differ_and_each_comes_back_the_same(budget: Budget) -> None:
    first, again, second, ninth = (list(batches(LENGTHS, budget, epoch)) for epoch in (0, 0, 1, 8))
    assert first == again
    assert first != second
    assert first != ninth


def test_rows_are_nearly_full() -> None:
    """Of 2048 tokens: the samples fill 97 of 100."""
    number = len(batches(LENGTHS, Budget(1, 2048)))
    assert sum(LENGTHS) / (number * 2048) > 0.97


def test_a_window_of_a_shuffle_keeps_chance_in_what_lies_together() -> None:
    """First fit over all samples would put the long ones together in each epoch."""
    lengths = [100] * 1000 + [50] * 1000
    first, second = (list(batches(lengths, Budget(1, 400), epoch)) for epoch in (0, 1))
    together = {frozenset(row) for row in first} & {frozenset(row) for row in second}
    assert len(together) < 5


def test_samples_longer_than_half_the_budget_have_rows_of_their_own() -> None:
    rows = list(batches([600] * 5000, Budget(1, 1000)))
    assert [len(row) for row in rows] == [1] * 5000


def test_fewer_samples_than_ranks_leave_ranks_an_empty_batch() -> None:
    rows = [list(batches([10, 10], Budget(4), 0, rank, 4)) for rank in range(4)]
    assert sorted(map(len, (row for rank in rows for row in rank))) == [0, 0, 1, 1]
    assert {len(rank) for rank in rows} == {1}


def test_evaluation_goes_by_length() -> None:
    for budget in BUDGETS:
        rows = in_order(LENGTHS, budget)
        flat = [LENGTHS[index] for row in rows for index in row]
        assert flat == sorted(LENGTHS, reverse=True)
        for row in rows:
            taken = [LENGTHS[index] for index in row]
            assert budget.takes(max(taken), sum(taken), len(taken))


def test_samples_that_no_row_takes_are_all_named() -> None:
    samples = [Sample([1] * length, [1] * length, f"rows.jsonl:{length}") for length in (5, 9, 12)]
    with pytest.raises(UserError) as caught:
        check_lengths([SimpleNamespace(samples=samples), None], 8)
    assert caught.value.message.splitlines() == [
        "rows.jsonl:9: 9 tokens, per_device_tokens is 8",
        "rows.jsonl:12: 12 tokens, per_device_tokens is 8",
    ]
    assert "per_device_tokens=12" in caught.value.hint
    assert caught.value.exit_code == EXIT_CONFIG
