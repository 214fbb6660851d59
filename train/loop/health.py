"""What must hold while a model trains: a sane first loss, gradients everywhere, finite numbers, moved
weights.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from train.errors import EXIT_TRAINING, UserError
from train.families import may_lack_gradient
from train.loop.beforehand import named
from train.loop.findings import Finding

if TYPE_CHECKING:
    import torch

    from train.loop.metrics import StepMetrics

UNIFORM_TOLERANCE = 0.05
"""A first loss this close to ln V is that of a model that guesses uniformly."""
VERY_LOW = 0.02
"""A share of ln V: 0.24 nats of Qwen's 11.93. Answers that a model was not trained on cost it 1 to 4 nats."""
PRETRAINED_HIGH = 6.0
"""Nats. A pretrained model starts at about 1 to 4 (field notes A); above this something does not fit."""
BY_CHANCE = 1e-9
"""The probability that a sound tensor is taken for a dead one."""
REAL_VOCABULARY = 32_000
"""A model of so many tokens was pretrained by somebody; one of fewer may be a toy that starts at ln V."""

LAYERS = ("these layers take no part in the loss", "leave them out of target_modules")
SETTINGS = (
    "no layer gets one: a setting lets nothing through, or the first steps threw the weights out of range",
    "lower learning_rate, look at adam_epsilon, max_grad_norm and dropout; if they are usual, the layers of "
    "target_modules take no part in the loss",
)
"""Cause and cure of tensors without a gradient: of some layers, and of all."""


def judge_first_loss(loss: float, vocab_size: int) -> str:
    """What a first loss says, against ln V, the loss of uniform guessing over `vocab_size` tokens (nats)."""
    uniform = math.log(vocab_size)
    share = loss / uniform
    figures = f"first loss {loss:.3f}, uniform guessing over {vocab_size} tokens is ln V = {uniform:.3f}"
    if abs(share - 1) <= UNIFORM_TOLERANCE:
        return f"{figures}: an untrained model starts here; a pretrained one starts far below"
    if share > 1:
        return f"warning: {figures}: {_worse(vocab_size)}"
    if share < VERY_LOW:
        return f"warning: {figures}: almost nothing to learn; are these rows what the model was trained on?"
    return f"{figures}: the model knows something already"


def _worse(vocab_size: int) -> str:
    """Why a first loss can be worse than guessing; only a toy is sure of other text than it is given."""
    toy = "" if vocab_size >= REAL_VOCABULARY else ", or a small model is sure of other text than these rows"
    return f"worse than guessing: weights, labels or chat template are wrong{toy}"


def first_loss_finding(line: StepMetrics, vocab_size: int, goes_on: bool) -> Finding | None:
    """What is wrong with the first loss, if anything. `goes_on`: the adapter was trained before."""
    uniform, loss = math.log(vocab_size), line.loss
    figures = f"the first loss is {loss:.3f}, uniform guessing is ln V = {uniform:.3f}"
    is_real = vocab_size >= REAL_VOCABULARY
    if loss > uniform * (1 + UNIFORM_TOLERANCE):
        cause = _worse(vocab_size)
        cure = "compare the checkpoint's files with their source; look at what is learned of a row"
        return Finding("first_loss_above_uniform", "warning", line.step, figures, cause, cure)
    if is_real and loss >= uniform * (1 - UNIFORM_TOLERANCE):
        cause = "the model knows nothing: an untrained one starts here, a pretrained one at about 1 to 4"
        cure = "compare the checkpoint's files with their source; look at what is learned of a row"
        return Finding("first_loss_at_uniform", "warning", line.step, figures, cause, cure)
    if is_real and loss > PRETRAINED_HIGH:
        cause = "a pretrained model starts at about 1 to 4: the rows or the chat template are foreign to it"
        cure = "use the instruct checkpoint whose template it is; look at what is learned of a row"
        return Finding("first_loss_high", "note", line.step, figures, cause, cure)
    if loss < VERY_LOW * uniform:
        cause = "almost nothing to learn: the answers leak into the prompts, or the model knows these rows"
        cure = "look at what is learned of a row, and for repeated rows"
        level: Literal["note", "warning"] = "note" if goes_on else "warning"
        return Finding("first_loss_very_low", level, line.step, figures, cause, cure)
    return None


class GradientCheck:
    """Notes which trainable tensors ever got a gradient that is not zero everywhere.

    It can tell only after a step that changed weights: LoRA's B starts at zero, so A has no gradient until B
    has moved, and a step at a learning rate of zero (warmup) or one that a loss scale skips moves nothing.

    parameters: name -> tensor. block_dropout: the share of a tensor's blocks (rows) that a step leaves out.
    """

    def __init__(self, parameters: dict[str, torch.nn.Parameter], block_dropout: float = 0.0) -> None:
        self.parameters = parameters
        self.block_dropout = block_dropout
        self.looks = 0
        self.without: set[str] = set(parameters)

    def look(self) -> bool:
        """Call after a backward pass, before gradients are cleared.

        False where this step can tell nothing: after an overflow every gradient is NaN, that of a tensor
        without a part in the loss too.
        """
        gradients = {name: self.parameters[name].grad for name in self.without}
        found = {name: gradient for name, gradient in gradients.items() if gradient is not None}
        if not all(bool(gradient.isfinite().all()) for gradient in found.values()):
            return False
        self.looks += 1
        self.without -= {name for name, gradient in found.items() if bool((gradient != 0).any())}
        return True

    def line(self) -> str:
        total = len(self.parameters)
        return f"{total - len(self.without)} of {total} adapter tensors got a gradient"

    def finding(self, step: int) -> Finding | None:
        """The tensors that nothing would ever change, by name; not those of experts: no token may have been
        sent there yet.
        """
        dead = [
            name for name in self.without if not may_lack_gradient(name) and self.looks >= self._enough(name)
        ]
        if not dead:
            return None
        return Finding(
            "dead_adapter_tensors",
            "stop",
            step,
            f"adapter: {self.line()}; without one:\n{named(dead)}",
            *(SETTINGS if self._is_whole_kind(dead) else LAYERS),
        )

    def _is_whole_kind(self, dead: list[str]) -> bool:
        """Whether these are all tensors, or LoRA's A or B of every layer."""
        told = [name for name in self.parameters if not may_lack_gradient(name)]
        kinds = [told, *([name for name in told if side in name] for side in ("lora_A", "lora_B"))]
        return any(kind and set(kind) <= set(dead) for kind in kinds)

    def _enough(self, name: str) -> int:
        """The steps after which chance alone, at one in a billion, explains no tensor without a gradient."""
        if not 0 < self.block_dropout < 1:
            return 1
        each = len(self.parameters[name]) * math.log(self.block_dropout)
        return max(1, math.ceil(math.log(BY_CHANCE) / each))


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
