"""Several sources as one set of samples: weights as repeats and a seeded fraction, drawn once for the run."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from train.data.formats import Record
from train.data.samples import Samples
from train.data.settings import WeightedPath
from train.data.template import Sample
from train.errors import EXIT_DATA, UserError


@dataclass
class Mixture:
    """What an epoch has: samples, some of them many times, and the records of all sources, each once."""

    samples: list[Sample]
    records: list[Record]
    notes: list[str] = field(default_factory=list)


def load_all(paths: Sequence[Path], load: Callable[[Path], Samples]) -> list[Samples]:
    """The samples of each path; a UserError with the faults of all of them, its code that of the first."""
    loaded, faults = [], []
    for path in paths:
        try:
            loaded.append(load(path))
        except UserError as fault:
            faults.append(fault)
    if faults:
        hints = "; ".join(dict.fromkeys(fault.hint for fault in faults if fault.hint))
        raise UserError("\n".join(fault.message for fault in faults), hints, faults[0].exit_code)
    return loaded


def mix(sources: Sequence[WeightedPath], loaded: Sequence[Samples], seed: int) -> Mixture:
    """The samples of each source `weight` times, in the order of the sources.

    All samples of a row go together. UserError (exit 65) where a weight leaves nothing of a source.
    """
    if len(loaded) == 1 and sources[0].weight == 1:
        return Mixture(loaded[0].samples, loaded[0].records)
    mixture = Mixture([], [record for part in loaded for record in part.records])
    for number, (source, part) in enumerate(zip(sources, loaded, strict=True)):
        rows = [list(group) for _, group in groupby(part.samples, key=lambda sample: sample.place)]
        drawn = draw(len(rows), source.weight, f"{seed} {number}")
        if not drawn:
            raise UserError(
                f"{source.path}: weight {source.weight:g} leaves none of its {len(rows)} rows",
                "give a larger weight, or leave the source out",
                EXIT_DATA,
            )
        mixture.samples += [sample for row in drawn for sample in rows[row]]
        mixture.notes.append(
            f"mixture: {source.path}: {len(rows)} rows, weight {source.weight:g}: {len(drawn)} an epoch"
        )
    mixture.notes.append(f"mixture: {len(mixture.samples)} samples an epoch, drawn once by seed {seed}")
    return mixture


def draw(num_rows: int, weight: float, seed: str) -> list[int]:
    """Places of `weight` times `num_rows` rows, rounded: all of them as often as they go in whole, then a
    fraction without repeats, in order.
    """
    repeats = int(weight)
    rest = round((weight - repeats) * num_rows)
    return [*range(num_rows)] * repeats + sorted(random.Random(seed).sample(range(num_rows), rest))
