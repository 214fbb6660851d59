"""How the samples of a batch are kept apart: a probe on the real model tries packed rows, and decides."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from train.data.collate import pack, pad
from train.data.template import Sample
from train.device import Choice
from train.errors import EXIT_CONFIG, EXIT_UNAVAILABLE, UserError
from train.families import may_pack
from train.loop.attention import BY_SAMPLE, no_mask
from train.loop.checkpoint import Checkpoint
from train.loop.loss import target_loss

TOLERANCES = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Largest difference of the packed to the separate computation, in parts of the largest figure or of 1.
Samples that see each other differ by a tenth and more."""
PROBE_LENGTHS = (6, 3, 9)

METHODS = {
    "by sample": "attention runs sample by sample",
    "by mask": "the attention's own mask keeps samples apart",
}


def candidates(attn_implementation: str) -> list[str]:
    """The ways to attend within packed rows, the cheapest first. An attention that was chosen stays: only
    sdpa can go sample by sample, as the same function of each.
    """
    return ["by sample", "by mask"] if attn_implementation == "sdpa" else ["by mask"]


def choose_packing(
    asked: str,
    core: Any,
    attn_implementation: str,
    agree: Callable[[bool], bool],
    autocast: Callable[[], Any],
) -> Choice:
    """`by sample`, `by mask` or `padded`, with the reason: the first that the probe passes, on all ranks.

    asked: the recipe's `packing`. core: the model on its device, without a DDP wrapper. agree: whether all
    ranks say yes. UserError (exit 69) where packing was asked for and every way fails.
    """
    if asked == "off":
        return Choice("padded", "packing is off")
    if asked == "auto" and not may_pack(core.config):
        return Choice("padded", "this model type is not known to keep samples of one row apart")
    reasons = []
    for method in candidates(attn_implementation):
        with attending(core, method, attn_implementation):
            passed, reason = probe(core, method, autocast)
        if agree(passed):
            return Choice(method, f"{METHODS[method]}; packed as separate: {reason}")
        reasons.append(f"{method}: {reason}" if not passed else f"{method}: another rank says no")
    failed = "; ".join(reasons)
    if asked == "on":
        raise UserError(
            f"packing: samples of one row are not kept apart: {failed}",
            "--set packing=auto pads samples where they cannot be packed",
            EXIT_UNAVAILABLE,
        )
    return Choice("padded", f"packed rows fail the probe: {failed}")


def require_same_batches(method: str, start: Checkpoint | None, tokens: int | None) -> None:
    """UserError (exit 78) where a run by tokens goes on with padding and began without it, or the reverse:
    its place in the data is a number of batches, and these would be others.
    """
    then = start.content.get("packing", method) if start else method
    if tokens is not None and (then == "padded") != (method == "padded"):
        raise UserError(
            f"packing: the run so far had its batches {then}, on this device they are {method}",
            "go on where it began, or begin anew in another --output",
            EXIT_CONFIG,
        )


@contextlib.contextmanager
def attending(core: Any, method: str, attn_implementation: str) -> Iterator[None]:
    """While it lasts, the model attends as `method` needs it; afterwards by `attn_implementation` again."""
    set_method(core, method, attn_implementation)
    try:
        yield
    finally:
        set_method(core, "padded", attn_implementation)


def set_method(core: Any, method: str, attn_implementation: str) -> None:
    """Let the model attend as `method` needs it, until it is told otherwise."""
    base = core.get_base_model() if hasattr(core, "get_base_model") else core
    wanted = BY_SAMPLE if method == "by sample" else attn_implementation
    if base.config._attn_implementation != wanted:
        base.set_attn_implementation(wanted)


def batch_of(samples: Sequence[Sample], filler_id: int, method: str) -> dict[str, Any]:
    """The batch of one forward, as `pack` or `pad` make it."""
    return pad(samples, filler_id) if method == "padded" else pack(samples, filler_id)


def split_batch(batch: dict[str, Any], method: str) -> tuple[dict[str, Any], torch.Tensor]:
    """The inputs of the model's forward, and the labels."""
    left = ("labels", "num_tokens", "num_target_tokens", "sample_lengths")
    inputs = {name: value for name, value in batch.items() if name not in left}
    if method == "by sample":
        inputs["sample_lengths"] = batch["sample_lengths"]
    return inputs, batch["labels"]


def forward_context(method: str) -> contextlib.AbstractContextManager[None]:
    """What a forward of `method` runs in."""
    return no_mask() if method == "by sample" else contextlib.nullcontext()


def probe(core: Any, method: str, autocast: Callable[[], Any]) -> tuple[bool, str]:
    """Whether packed samples have the logits and gradients that they have alone, and how far they are apart.

    Three short samples of fixed tokens, one forward and backward each and one of all; no generator is drawn
    from and no gradient is left.
    """
    vocab_size = core.get_input_embeddings().weight.shape[0]
    samples = _samples(vocab_size)
    was_training = core.training
    core.eval()
    try:
        alone = [_run(core, [sample], method, autocast) for sample in samples]
        logits, gradient = _run(core, samples, method, autocast)
    except Exception as fault:  # an attention that lacks a kernel raises what its vendor likes
        return False, f"{type(fault).__name__}: {str(fault).strip().splitlines()[0] if str(fault) else ''}"
    finally:
        core.train(was_training)
    tolerance = TOLERANCES[next(core.parameters()).dtype]
    apart = {
        "logits": _apart(logits, torch.cat([one for one, _ in alone])),
        "gradients": _apart(gradient, torch.stack([one for _, one in alone]).sum(0)),
    }
    said = ", ".join(f"{name} {value:.0e}" for name, value in apart.items())
    return all(value <= tolerance for value in apart.values()), f"{said} apart, {tolerance:.0e} is allowed"


def _samples(vocab_size: int) -> list[Sample]:
    draw = torch.Generator().manual_seed(0)
    rows = [torch.randint(0, vocab_size, (length,), generator=draw).tolist() for length in PROBE_LENGTHS]
    return [Sample(row, row, "probe") for row in rows]


def _run(
    core: Any, samples: list[Sample], method: str, autocast: Callable[[], Any]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [tokens, vocabulary], and the gradient of the summed loss for all that learns, in one vector."""
    device = next(core.parameters()).device
    batch = pack(samples, 0)
    moved = {name: value.to(device) if torch.is_tensor(value) else value for name, value in batch.items()}
    inputs, labels = split_batch(moved, method)
    learns = [parameter for parameter in core.parameters() if parameter.requires_grad]
    with forward_context(method), autocast():
        with torch.no_grad():
            logits = core(**inputs, use_cache=False).logits[0].float()
        if not learns:
            return logits, logits.new_zeros(1)
        total = target_loss(core, core, inputs, labels).total
    # An expert that no token was sent to has none.
    gradients = torch.autograd.grad(total, learns, allow_unused=True, materialize_grads=True)
    return logits, torch.cat([one.float().flatten() for one in gradients])


def _apart(left: torch.Tensor, right: torch.Tensor) -> float:
    """The largest difference, in parts of the largest figure, or of 1; infinite where one is no number."""
    difference = (left - right).abs().max() / right.abs().max().clamp(min=1.0)
    return float(difference) if bool(torch.isfinite(difference)) else float("inf")
