"""What the lines of metrics say as each is written: every check is a function of the lines so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import takewhile
from statistics import fmean, median

from train.loop.findings import Finding
from train.loop.metrics import StepMetrics

Lines = Sequence[StepMetrics]

NO_GRADIENT_WARNED, NO_GRADIENT_STOPPED = 3, 10
"""Lines in a row with a grad norm of exactly 0. One can be a batch that taught nothing."""
SPIKE = 10.0
"""A grad norm of so many times its running median. LoRA's ordinary range is a factor of 4 (0.8 to 2.7 over
2,400 steps on Qwen2.5-VL, field notes B)."""
MEDIAN_LINES, MEDIAN_LEAST = 50, 10
EXPLODING_LINES = 3
JUMP_LINES, JUMP_BEFORE = 4, 30
"""A jump: each of the last 4 losses is above all of the 30 before. By chance once in 46,000 lines."""
JUMP = 1.3
"""And their mean is so many times the median before. Field notes B: bf16 went from 0.5 to 0.9."""
ABOVE_START, ABOVE_START_LINES = 1.25, 8
"""Each of the last 8 losses is above all of the first 8: by chance once in 13,000."""
STUCK_STEPS, STUCK = 200, 0.02
"""Field notes A: "stuck at 11.5 for hundreds of steps", 3.6 % below the ln V that it started from."""
STUCK_AT_UNIFORM = 0.05
FLAT_STEPS, FLAT = 200, 0.005
"""Field notes A: stop when it has been flat for hundreds of steps."""
WINDOW_LINES, START_LINES = 10, 3
ZERO_RATE_LINES = 5
FEW_STEP_TARGETS = 16
OVERFLOW_STEPS, OVERFLOW_SHARE = 50, 0.10
"""A dynamic scale overflows about once in its growth interval of 2,000 steps (torch.amp.GradScaler), and some
16 times at most while it comes down from 2**16."""
SCALE_LEAST = 1.0
"""Below it the scale makes gradients smaller than they are: they overflow by themselves."""


def no_gradient(lines: Lines) -> Finding | None:
    """Gradients that are exactly zero, line after line."""
    count = next((index for index, line in enumerate(reversed(lines)) if line.grad_norm != 0), len(lines))
    if count < NO_GRADIENT_WARNED:
        return None
    return Finding(
        "no_gradient",
        "stop" if count >= NO_GRADIENT_STOPPED else "warning",
        lines[-1].step,
        f"the grad norm is 0 for {count} lines of metrics",
        "nothing is updated: the adapter takes no part in the loss, or fp16 gradients underflow",
        "look at the table of targets, at what is learned of a row, and at the precision",
    )


def exploding(lines: Lines) -> Finding | None:
    """Gradients far above what they were before; one such line is a note, several in a row a warning."""
    last, before = lines[-EXPLODING_LINES:], lines[-MEDIAN_LINES - EXPLODING_LINES : -EXPLODING_LINES]
    if len(before) < MEDIAN_LEAST:
        return None
    usual = median(line.grad_norm for line in before)
    high = [line for line in last if math.inf > line.grad_norm > SPIKE * usual > 0]
    if last[-1] not in high:
        return None
    is_lasting = len(high) == EXPLODING_LINES
    return Finding(
        "exploding_gradients" if is_lasting else "gradient_spike",
        "warning" if is_lasting else "note",
        last[-1].step,
        f"the grad norm is {last[-1].grad_norm:.3g}, {last[-1].grad_norm / usual:.0f} times its median of "
        f"{usual:.3g}",
        "the learning rate is too high, or some rows are odd" if is_lasting else "some rows are odd",
        "lower learning_rate, lengthen warmup_steps" if is_lasting else "clipping (max_grad_norm) holds it",
    )


def jump(lines: Lines) -> Finding | None:
    """A loss that goes up at once and stays there for some lines."""
    last, before = lines[-JUMP_LINES:], lines[-JUMP_LINES - JUMP_BEFORE : -JUMP_LINES]
    if len(before) < JUMP_BEFORE or min(_losses(last)) <= max(_losses(before)):
        return None
    usual, now = median(_losses(before)), fmean(_losses(last))
    if now < JUMP * usual:
        return None
    return Finding(
        "loss_jump",
        "warning",
        last[0].step,
        f"the loss went from {usual:.3f} to {now:.3f}",
        "the learning rate is too high for where the run is, or bf16 rounds too much away (such jumps come "
        "back within some hundred steps)",
        "lower learning_rate; precision fp32, or fp16 with its loss scale; look at the rows of these steps",
    )


def above_start(lines: Lines) -> Finding | None:
    """A loss that has left its first value upwards."""
    first, last = _losses(lines[:ABOVE_START_LINES]), _losses(lines[-ABOVE_START_LINES:])
    if len(lines) < 2 * ABOVE_START_LINES or min(last) <= max(first):
        return None
    if fmean(last) < ABOVE_START * fmean(first):
        return None
    return Finding(
        "loss_above_start",
        "warning",
        lines[-1].step,
        f"the loss is {fmean(last):.3f}, it began at {fmean(first):.3f}",
        "the run diverges: the learning rate is too high",
        "lower learning_rate to a tenth, lengthen warmup_steps",
    )


def stuck(lines: Lines, uniform: float, warmup_steps: int) -> Finding | None:
    """A loss that is still where it began. `uniform`: ln V, in nats."""
    last = lines[-1]
    if last.step < warmup_steps + STUCK_STEPS or len(lines) < 2 * WINDOW_LINES:
        return None
    start, now = fmean(_losses(lines[:START_LINES])), fmean(_losses(lines[-WINDOW_LINES:]))
    if abs(now - start) > STUCK * start:
        return None
    at_uniform = abs(now / uniform - 1) <= STUCK_AT_UNIFORM
    return Finding(
        "stuck_at_uniform" if at_uniform else "stuck_at_start",
        "warning",
        last.step,
        f"the loss is {now:.3f} after {last.step} steps, it began at {start:.3f}"
        + (f", and uniform guessing is ln V = {uniform:.3f}" if at_uniform else ""),
        "the adapter is not on the layers that matter, the learning rate is too low, or the labels are wrong",
        "look at the table of targets (target_modules=auto takes every projection), raise learning_rate, "
        "look at what is learned of a row",
    )


def flat(lines: Lines) -> Finding | None:
    """A loss that has come down and moves no more: a note, it may be done."""
    step = lines[-1].step
    both = _since(lines, step - 2 * FLAT_STEPS)
    recent = [line.loss for line in both if line.step > step - FLAT_STEPS]
    before = [line.loss for line in both if line.step <= step - FLAT_STEPS]
    if lines[0].step > step - 2 * FLAT_STEPS or min(len(recent), len(before)) < WINDOW_LINES:
        return None
    change = fmean(before) - fmean(recent)
    if abs(change) > FLAT * fmean(before) or fmean(recent) > (1 - STUCK) * lines[0].loss:
        return None
    return Finding(
        "flat_loss",
        "note",
        step,
        f"the mean loss of {FLAT_STEPS} steps is {fmean(recent):.4f}, of those before {fmean(before):.4f}",
        "the run has learned what it can from these rows at this rate",
        "stop here where the evaluation loss is flat too; training loss alone misleads",
    )


def zero_rate(lines: Lines) -> Finding | None:
    """A learning rate of exactly zero, line after line."""
    last = lines[-ZERO_RATE_LINES:]
    if len(last) < ZERO_RATE_LINES or any(line.learning_rate for line in last):
        return None
    return Finding(
        "zero_learning_rate",
        "warning",
        last[-1].step,
        f"the learning rate is 0 for {ZERO_RATE_LINES} lines of metrics",
        "the schedule has come to its end before the run has, or never began",
        "look at learning_rate, warmup_steps and lr_scheduler_type",
    )


def few_targets(lines: Lines) -> Finding | None:
    """Steps that learn next to nothing; counted over the steps since the line before."""
    steps = lines[-1].step - (lines[-2].step if len(lines) > 1 else 0)
    each = lines[-1].num_target_tokens / steps
    if each >= FEW_STEP_TARGETS:
        return None
    if each == 0:
        return Finding(
            "no_target_tokens",
            "stop",
            lines[-1].step,
            "0 target tokens in this step",
            "nothing can be learned from it: all labels are masked",
            "look at what is learned of a row; raise max_length where prompts fill it",
        )
    return Finding(
        "few_target_tokens_in_step",
        "note",
        lines[-1].step,
        f"{each:.0f} target tokens in a step",
        "answers are short and the batch is small: steps are noisy",
        "raise gradient_accumulation_steps or per_device_train_batch_size",
    )


def overflows(lines: Lines) -> Finding | None:
    """fp16: a loss scale that finds no place."""
    scale = lines[-1].loss_scale
    skipped = sum(line.num_skipped_steps or 0 for line in _since(lines, lines[-1].step - OVERFLOW_STEPS))
    has_collapsed = scale is not None and scale < SCALE_LEAST
    if not has_collapsed and (lines[-1].step < OVERFLOW_STEPS or skipped <= OVERFLOW_SHARE * OVERFLOW_STEPS):
        return None
    return Finding(
        "loss_scale_collapsed" if has_collapsed else "many_skipped_steps",
        "stop" if has_collapsed else "warning",
        lines[-1].step,
        f"{skipped} of the last {min(OVERFLOW_STEPS, lines[-1].step)} steps were skipped, the loss scale is "
        f"{scale or 0:g}",
        "gradients overflow fp16 whatever the scale" if has_collapsed else "gradients overflow fp16 often",
        "take precision bf16 or fp32, or lower learning_rate",
    )


def judge(lines: Lines, uniform: float, warmup_steps: int) -> list[Finding]:
    """What the newest line says together with those before."""
    found = [
        overflows(lines),
        no_gradient(lines),
        exploding(lines),
        jump(lines),
        above_start(lines),
        stuck(lines, uniform, warmup_steps),
        flat(lines),
        zero_rate(lines),
        few_targets(lines),
    ]
    return [finding for finding in found if finding]


def _since(lines: Lines, step: int) -> Lines:
    """The lines after a step, newest first."""
    return list(takewhile(lambda line: line.step > step, reversed(lines)))


def _losses(lines: Lines) -> list[float]:
    return [line.loss for line in lines]
