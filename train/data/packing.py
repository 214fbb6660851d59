"""Which samples make up each batch of an epoch: by number or by tokens, the same on every device type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import Sampler

from train.errors import EXIT_CONFIG, UserError

NUM_PLANS = 8
"""Different packings of a run; epoch e takes number e mod NUM_PLANS, in an order of its own. So the number of
batches of every epoch, and with it that of the steps, is known before the first one."""
SHOWN = 20
ROWS_IN_WINDOW = 64
SMALLEST_WINDOW = 256
FULL = 0.9
MOST_LEFT = 16
"""Of the rows of a window that are less full than FULL, so many give their samples to the next window."""


@dataclass(frozen=True)
class Budget:
    """How much one forward takes: at most so many tokens, padding counted in where `packed` is false; or,
    where `tokens` is None, so many samples.
    """

    samples: int
    tokens: int | None = None
    packed: bool = True

    def takes(self, longest: int, total: int, count: int) -> bool:
        """Whether `count` samples of `total` tokens, the longest of `longest`, fit into one forward."""
        if self.tokens is None:
            return count <= self.samples
        return (total if self.packed else count * longest) <= self.tokens


def check_lengths(parts: Sequence[Any], tokens: int | None) -> None:
    """UserError (exit 78) naming the samples of these `Samples` that no forward of `tokens` tokens takes."""
    if tokens is None:
        return
    samples = [sample for part in parts if part for sample in part.samples]
    too_long = [sample for sample in samples if len(sample.input_ids) > tokens]
    if too_long:
        longest = max(len(sample.input_ids) for sample in too_long)
        lines = [
            f"{sample.place}: {len(sample.input_ids)} tokens, per_device_tokens is {tokens}"
            for sample in too_long[:SHOWN]
        ]
        if len(too_long) > SHOWN:
            lines.append(f"and {len(too_long) - SHOWN} more samples")
        hint = f"--set per_device_tokens={longest}, or --set max_length={tokens} to leave them out"
        raise UserError("\n".join(lines), hint, EXIT_CONFIG)


@dataclass
class _Row:
    longest: int
    total: int = 0
    members: list[int] = field(default_factory=list)


def fill(order: Sequence[int], lengths: Sequence[int], budget: Budget) -> list[list[int]]:
    """First fit by length: from the longest sample to the shortest, each into the first row that takes it."""
    rows: list[_Row] = []
    closed: list[_Row] = []
    shortest = min((lengths[index] for index in order), default=0)
    for index in sorted(order, key=lambda index: -lengths[index]):
        length = lengths[index]
        for row in rows:
            if budget.takes(row.longest, row.total + length, len(row.members) + 1):
                break
        else:
            row = _Row(longest=length)
            rows.append(row)
        row.members.append(index)
        row.total += length
        if not budget.takes(row.longest, row.total + shortest, len(row.members) + 1):
            rows.remove(row)
            closed.append(row)
    return [row.members for row in closed + rows]


def pack_by_tokens(lengths: Sequence[int], budget: Budget, seed: int) -> list[list[int]]:
    """Rows of sample indices, each index once; first fit inside windows of a seeded shuffle.

    A window has about ROWS_IN_WINDOW rows' worth of samples: what lies together stays random, and rows get
    nearly full.
    """
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed)).tolist()
    mean = max(1.0, sum(lengths) / max(1, len(lengths)))
    window = max(SMALLEST_WINDOW, int(ROWS_IN_WINDOW * (budget.tokens or 0) / mean))
    rows: list[list[int]] = []
    left: list[int] = []
    for start in range(0, len(order), window):
        filled = fill(left + order[start : start + window], lengths, budget)
        filled.sort(key=lambda row: _share(row, lengths, budget))
        is_last = start + window >= len(order)
        open_rows = [] if is_last else filled[:MOST_LEFT]
        back = [row for row in open_rows if _share(row, lengths, budget) < FULL]
        left = [index for row in back for index in row]
        rows += filled[len(back) :]
    return rows


def _share(row: list[int], lengths: Sequence[int], budget: Budget) -> float:
    taken = [lengths[index] for index in row]
    return (sum(taken) if budget.packed else len(taken) * max(taken)) / (budget.tokens or 1)


def in_order(lengths: Sequence[int], budget: Budget) -> list[list[int]]:
    """Rows of the samples sorted by length, for evaluation: little padding, and no chance."""
    rows: list[list[int]] = [[]]
    total = 0
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        longest = lengths[(rows[-1] or [index])[0]]
        if rows[-1] and not budget.takes(longest, total + lengths[index], len(rows[-1]) + 1):
            rows.append([])
            total = 0
        rows[-1].append(index)
        total += lengths[index]
    return rows


def spread(rows: list[list[int]], number: int) -> list[list[int]]:
    """The same samples in `number` rows: the rows of most samples are halved; then there are empty ones."""
    rows = list(rows)
    while len(rows) < number:
        most = max(range(len(rows)), key=lambda place: len(rows[place]))
        half = len(rows[most]) // 2
        rows[most : most + 1] = [rows[most][:half], rows[most][half:]] if half else [rows[most], []]
    return rows


class EpochBatches(Sampler[list[int]]):
    """The batches of one rank in each epoch, from seed and epoch alone; every sample once over all ranks.

    All ranks and all epochs have the same number of batches. epoch: which one the next iteration is. It is
    asked for: the library's data loader counts from zero after a resume (transformers 4.57 with accelerate
    1.12), and the rest of an epoch would then be of another order.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        budget: Budget,
        seed: int,
        epoch: Callable[[], int],
        rank: int = 0,
        num_ranks: int = 1,
        num_epochs: float = NUM_PLANS,
    ) -> None:
        self.lengths, self.budget, self.seed, self.epoch = lengths, budget, seed, epoch
        self.rank, self.num_ranks = rank, num_ranks
        self.plans: list[list[list[int]]] = []
        if budget.tokens is None:
            number = -(-len(lengths) // budget.samples)
        else:
            num_plans = min(NUM_PLANS, max(1, -int(-num_epochs // 1)))
            self.plans = [pack_by_tokens(lengths, budget, seed + plan) for plan in range(num_plans)]
            number = max(len(rows) for rows in self.plans)
        self.number = -(-number // num_ranks) * num_ranks

    def rows(self, epoch: int) -> list[list[int]]:
        """The batches of all ranks in one epoch; step by step, each rank takes the next one."""
        generator = torch.Generator().manual_seed(self.seed + epoch)
        if not self.plans:
            order = torch.randperm(len(self.lengths), generator=generator).tolist()
            size = self.budget.samples
            return spread([order[at : at + size] for at in range(0, len(order), size)], self.number)
        rows = spread(self.plans[epoch % len(self.plans)], self.number)
        return [rows[place] for place in torch.randperm(len(rows), generator=generator).tolist()]

    def __iter__(self) -> Iterator[list[int]]:
        yield from self.rows(self.epoch())[self.rank :: self.num_ranks]

    def __len__(self) -> int:
        return self.number // self.num_ranks
