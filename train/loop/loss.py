"""The loss over target tokens: logits only where one is predicted, in chunks that never hold all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from train.adapters.siblings import product_dtype
from train.data.template import IGNORED

CHUNK_BYTES = 1 << 27
"""fp32 logits that are held at a time: 220 positions of a vocabulary of 151,936. The head's weights are read
once per chunk and direction: with 64 positions its products ran at half the rate that they have with 256."""
FEWEST_ROWS = 16


@dataclass(frozen=True)
class TargetLoss:
    """Over all target tokens of a batch: the sum of their losses (nats, fp32, with the graph), how many the
    likeliest token hits (None where nobody asked), and what the model adds for the balance of its experts:
    its own weighted mean over the batch, None where its config has `output_router_logits` off.
    """

    total: torch.Tensor
    hits: torch.Tensor | None = None
    auxiliary: torch.Tensor | None = None


def target_loss(
    model: Any, core: Any, inputs: dict[str, Any], labels: torch.Tensor, count_hits: bool = False
) -> TargetLoss:
    """The loss of `labels` [samples, tokens] under `model(**inputs)`; label t is predicted at position t - 1.

    core: the model without its DDP wrapper. The output head is called within the model's own forward, so
    wrappers, autocast and what adapters share per call see an ordinary call; it gives the loss in place of
    logits. A head that the model does not call as a module is served from the logits.
    """
    found: list[TargetLoss] = []
    wanted = labels[:, 1:].reshape(-1)
    kept = (wanted != IGNORED).nonzero().flatten()
    targets = wanted[kept]
    positions = kept + kept // max(1, labels.shape[1] - 1)  # rows of hidden states are one longer

    def take(hidden: torch.Tensor, forward: Callable[..., torch.Tensor], head: Any) -> torch.Tensor:
        rows = hidden.reshape(-1, hidden.shape[-1]).index_select(0, positions)
        found.append(head_loss(rows, targets, forward, head, count_hits))
        # Tied to the hidden states also where there is no target: each rank has a graph for its gradients.
        return found[-1].total if len(targets) else found[-1].total + hidden.sum() * 0.0

    with _head_gives(core, take):
        output = model(**inputs, use_cache=False)
    auxiliary = getattr(output, "aux_loss", None)
    if auxiliary is not None:
        auxiliary = auxiliary * core.config.router_aux_loss_coef
    if found:
        return TargetLoss(output.logits.reshape(()), found[0].hits, auxiliary)
    rows = output.logits.reshape(-1, output.logits.shape[-1]).index_select(0, positions)
    return replace(_plain(rows, targets, count_hits), auxiliary=auxiliary)


@contextlib.contextmanager
def _head_gives(core: Any, take: Callable[..., torch.Tensor]) -> Iterator[None]:
    """While it lasts, calling the model's output head gives `take(hidden, forward, head)`."""
    head = core.get_output_embeddings()
    own = head.__dict__.get("forward")  # accelerate and others put one there
    forward = head.forward
    head.forward = lambda hidden: take(hidden, forward, head)
    try:
        yield
    finally:
        del head.forward
        if own is not None:
            head.forward = own


def head_loss(
    hidden: torch.Tensor,
    targets: torch.Tensor,
    forward: Callable[..., torch.Tensor],
    head: Any,
    count_hits: bool = False,
) -> TargetLoss:
    """The loss of `targets` [rows] under a head of `hidden` [rows, width], whose own forward is `forward`.

    A frozen linear head gets its gradient with the loss, chunk by chunk, and none of it is computed again. Of
    a head that learns or has an adapter, each chunk is computed again in the backward pass.
    """
    rows = max(FEWEST_ROWS, CHUNK_BYTES // (4 * head.weight.shape[0]))
    chunks = list(zip(hidden.split(rows), targets.split(rows), strict=True))
    if count_hits:
        counted = [_plain(forward(part), wanted, True) for part, wanted in chunks]
        hits = [part.hits for part in counted if part.hits is not None]
        return TargetLoss(torch.stack([part.total for part in counted]).sum(), torch.stack(hits).sum())
    if _is_frozen_linear(head):
        return TargetLoss(_FrozenHead.apply(hidden, targets, head.weight, head.bias, rows))

    def loss(part: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return _plain(forward(part), wanted).total

    losses = [checkpoint(loss, part, wanted, use_reentrant=False) for part, wanted in chunks]
    return TargetLoss(torch.stack(losses).sum())


def _is_frozen_linear(head: Any) -> bool:
    frozen = not any(parameter.requires_grad for parameter in head.parameters())
    return type(head) is torch.nn.Linear and frozen


def _plain(logits: torch.Tensor, targets: torch.Tensor, count_hits: bool = False) -> TargetLoss:
    total = cross_entropy(logits.float(), targets, reduction="sum")
    return TargetLoss(total, (logits.argmax(-1) == targets).sum() if count_hits else None)


class _FrozenHead(torch.autograd.Function):
    """Sum of the cross-entropies of a frozen linear head, which keeps its gradient for the hidden states
    [rows, width] and no logits. The softmax is fp32, the products are in the dtype of the head's call.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        targets: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        rows: int,
    ) -> torch.Tensor:
        dtype = product_dtype(hidden)
        weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)
        gradient = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        total = hidden.new_zeros((), dtype=torch.float32)
        # One buffer for all chunks: fresh memory costs a CPU as much as half of the product.
        buffer = hidden.new_empty((min(rows, len(hidden)), len(weight)), dtype=dtype)
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            logits = buffer[: len(hidden[part])]
            torch.mm(hidden[part].to(dtype), weight.T, out=logits)
            shares = (logits if bias is None else logits.add_(bias)).float()
            chosen = targets[part, None]
            largest = shares.amax(1, keepdim=True)
            scores = shares.gather(1, chosen) - largest
            sums = shares.sub_(largest).exp_().sum(1, keepdim=True)
            total += (sums.log() - scores).sum()
            if gradient is not None:
                shares.div_(sums).scatter_add_(1, chosen, -torch.ones_like(sums))
                gradient[part] = torch.mm(shares.to(dtype), weight)
        ctx.gradient = gradient
        return total

    @staticmethod
    def backward(ctx: Any, *outputs: torch.Tensor) -> Any:
        return ctx.gradient * outputs[0].to(ctx.gradient.dtype), None, None, None, None
