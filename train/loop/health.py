"""What must hold while a model trains: a sane first loss, gradients everywhere, finite numbers, moved
weights.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from train.errors import EXIT_TRAINING, UserError
from train.families import may_lack_gradient

if TYPE_CHECKING:
    import torch

UNIFORM_TOLERANCE = 0.05
"""A first loss this close to ln V is that of a model that guesses uniformly."""


def judge_first_loss(loss: float, vocab_size: int) -> str:
    """What a first loss says, against ln V, the loss of uniform guessing over `vocab_size` tokens (nats)."""
    uniform = math.log(vocab_size)
    share = loss / uniform
    figures = f"first loss {loss:.3f}, uniform guessing over {vocab_size} tokens is ln V = {uniform:.3f}"
    if abs(share - 1) <= UNIFORM_TOLERANCE:
        return f"{figures}: an untrained model starts here; a pretrained one starts far below"
    if share > 1:
        return f"warning: {figures}: worse than guessing; weights, labels or chat template are wrong"
    if share < 0.02:
        return f"warning: {figures}: almost nothing to learn; are these rows what the model was trained on?"
    return f"{figures}: the model knows something already"


class GradientCheck:
    """Notes which trainable tensors ever got a gradient that is not zero everywhere.

    It can tell only after a step that changed weights: LoRA's B starts at zero, so A has no gradient until B
    has moved, and a step at a learning rate of zero (warmup) or one that a loss scale skips moves nothing.
    """

    def __init__(self, parameters: dict[str, torch.nn.Parameter]) -> None:
        self.parameters = parameters
        self.without: set[str] = set(parameters)

    def look(self) -> None:
        """Call after a backward pass, before gradients are cleared."""
        for name in list(self.without):
            gradient = self.parameters[name].grad
            if gradient is not None and bool((gradient != 0).any()):
                self.without.discard(name)

    def line(self) -> str:
        total = len(self.parameters)
        return f"{total - len(self.without)} of {total} adapter tensors got a gradient"

    def enforce(self) -> None:
        """UserError (exit 70) naming the tensors that nothing would ever change; not those of experts: no
        token may have been sent there yet.
        """
        if names := sorted(name for name in self.without if not may_lack_gradient(name)):
            shown = "\n".join(names[:5] + ([f"and {len(names) - 5} more"] if len(names) > 5 else []))
            raise UserError(
                f"adapter: {self.line()}; without one:\n{shown}",
                "these layers take no part in the loss: leave them out of target_modules",
                EXIT_TRAINING,
            )


def require_finite(step: int, **figures: float) -> None:
    """UserError (exit 70) where a figure of a step is NaN or infinite."""
    wrong = [f"step {step}: {name} is {value}" for name, value in figures.items() if not math.isfinite(value)]
    if wrong:
        raise UserError(
            "\n".join(wrong),
            "lower learning_rate, or take precision fp32; nothing after this step would be right",
            EXIT_TRAINING,
        )


def require_moved(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> None:
    """UserError (exit 70) where not one adapter tensor changed: the run taught nothing."""
    if all(bool((before[name] == tensor).all()) for name, tensor in after.items()):
        raise UserError(
            "adapter: no tensor changed during training", "raise learning_rate or max_steps", EXIT_TRAINING
        )
