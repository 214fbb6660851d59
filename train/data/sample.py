"""A sample: token ids with labels on the answers only, held compactly."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

IGNORED = -100
"""The label of a position that is not a target token (torch's cross-entropy skips it)."""


class TemplateFault(ValueError):
    """A record that the chat template cannot render as prompts plus answers."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A tokenised conversation, or a part of one.

    `input_ids`, `labels`: as long as each other, given as any sequence of numbers and held as `array('i')`:
    4 bytes a token, and like a list in all else. Labels are IGNORED but on the answers and their stop tokens.
    `turns`: which messages of the record are learned here, as far as it is known.
    """

    input_ids: Sequence[int]
    labels: Sequence[int]
    place: str
    turns: tuple[int, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        for name in ("input_ids", "labels"):
            value = getattr(self, name)
            if not isinstance(value, array):
                object.__setattr__(self, name, array("i", value))

    @property
    def num_target_tokens(self) -> int:
        """Positions that are learned. The first one can never be: nothing predicts it."""
        ignored = self.labels.count(IGNORED)
        return len(self.labels) - ignored - (len(self.labels) > 0 and self.labels[0] != IGNORED)
