"""Many rotations of one form as one batch: made of their parameters once, and anew where these changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from train.adapters import cayley
from train.adapters.siblings import versions


@dataclass(frozen=True)
class Form:
    """How a vector of parameters becomes a rotation; the fields of PEFT's OFTConfig that decide it.

    eps: the bound of constrained OFT on norm_F(Q) * sqrt(number of blocks), None without it.
    dropout: the share of blocks that is left out in training.
    """

    block: int
    num_terms: int | None
    eps: float | None
    shared: bool
    dropout: float

    def rotations(self, skew: torch.Tensor) -> torch.Tensor:
        """R [n, b, b] of Q [n, b, b], fp32."""
        return cayley.exact(skew) if self.num_terms is None else cayley.series(skew, self.num_terms)


@dataclass
class State:
    """The rotations of a family for one state of its parameters.

    vectors: all parameters in one tensor, as they were. skew, rotations: [blocks, b, b], fp32, without the
    graph; `turning` is what the layers use, with the graph and what a dropout left of it: the blocks where
    `kept` [blocks, 1, 1] is true. pieces: by dtype and modes of gradients, then by group, [blocks, b, k * b].
    spent: set when a backward pass has used up the graph.
    """

    seen: dict[int, list[tuple[int, int]]]
    vectors: torch.Tensor
    recorded: bool
    kept: torch.Tensor | None
    inference: bool
    skew: torch.Tensor
    rotations: torch.Tensor
    turning: torch.Tensor
    pieces: dict[object, dict[int, torch.Tensor]] = field(default_factory=dict)
    spent: list[bool] = field(default_factory=lambda: [False])


class Family:
    """The groups of one form on one device, all mapped together.

    `groups`: of each, its members' modules with a `weight` [blocks, b (b - 1) / 2], all of one size. Modules,
    as loading and moving a model can put other parameters into them.
    """

    def __init__(self, form: Form, groups: dict[int, list[torch.nn.Module]]) -> None:
        self.form = form
        self.groups = groups
        by_width: dict[int, list[int]] = {}
        for index, members in groups.items():
            by_width.setdefault(len(members), []).append(index)
        self.buckets = sorted(by_width.items())
        # Within a bucket all first members come first, then all second ones: one copy then puts the
        # rotations of every group side by side.
        self.modules: list[Any] = [
            groups[index][member]
            for width, bucket in self.buckets
            for member in range(width)
            for index in bucket
        ]
        self.state: State | None = None

    def parameters(self) -> list[torch.Tensor]:
        """Those of all members, in the order of the batch."""
        return [module.weight for module in self.modules]

    def current(self, training: bool, group: int | None = None, fresh: bool = False) -> State:
        """The rotations of the parameters as they are; computed anew only where they changed, and with
        `fresh` where a graph or a dropout is due: each forward has its own.

        Without `group` the values themselves are compared: fused optimizers, and whoever writes to `.data`,
        leave no trace in the version counters. With it the counters of that group alone are, which is what
        each layer can afford.
        """
        state = self.state
        recorded = torch.is_grad_enabled() and any(module.weight.requires_grad for module in self.modules)
        dropped = training and self.form.dropout > 0
        if (
            state is None
            or (fresh and (recorded or dropped))
            or state.spent[0]
            or (torch.is_grad_enabled() and recorded != state.recorded)
            or dropped != (state.kept is not None)
            or (state.inference and not torch.is_inference_mode_enabled())
            or self._differs(state, group)
        ):
            state = self.state = self._compute(recorded, dropped)
        return state

    def _differs(self, state: State, group: int | None) -> bool:
        groups = self.groups if group is None else {group: self.groups[group]}
        if any(state.seen[index] != versions(weights(members)) for index, members in groups.items()):
            return True
        return group is None and not torch.equal(state.vectors, torch.cat(self.parameters()))

    def piece(self, group: int, state: State, dtype: torch.dtype) -> torch.Tensor:
        """The rotations of a group's members side by side, [blocks, b, k * b]."""
        # What was made without gradients, or in inference mode, is of no use to a forward that records.
        key = dtype, torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        if key not in state.pieces:
            state.pieces[key] = self._split(state.turning.to(dtype))
        return state.pieces[key][group]

    def _compute(self, recorded: bool, dropped: bool) -> State:
        # Hooks of gradient checkpointing must not see what is saved here: it is not computed again.
        hooks = torch.autograd.graph.saved_tensors_hooks(_as_is, _as_is)
        with without_autocast(self.modules[0].weight), hooks:
            if self.form.eps is not None and recorded:
                self._project()
            vectors = torch.cat(self.parameters())
            skew = cayley.skew_matrices(self._bounded(vectors.float()), self.form.block)
            rotations = turning = self.form.rotations(skew)
            kept = self._kept(rotations) if dropped else None
            if kept is not None:
                identity = torch.eye(self.form.block, device=rotations.device)
                turning = torch.where(kept.to(rotations.device), rotations, identity)
        state = State(
            seen={index: versions(weights(members)) for index, members in self.groups.items()},
            vectors=vectors.detach(),
            recorded=recorded,
            kept=kept,
            inference=torch.is_inference_mode_enabled(),
            skew=skew.detach(),
            rotations=rotations.detach(),
            turning=turning,
        )
        if turning.requires_grad:
            spent = state.spent
            turning.register_hook(lambda gradient: spent.__setitem__(0, True))
        return state

    def _project(self) -> None:
        """Put the parameters themselves within the bound of constrained OFT, as PEFT does in each forward."""
        with torch.no_grad():
            parameters = self.parameters()
            bounded = self._bounded(torch.cat(parameters).float())
            parts = bounded.split([len(parameter) for parameter in parameters])
            torch._foreach_copy_(parameters, list(parts))

    def _bounded(self, vectors: torch.Tensor) -> torch.Tensor:
        if self.form.eps is None:
            return vectors
        limits = [self.form.eps / len(parameter) ** 0.5 for parameter in self.parameters() for _ in parameter]
        with torch.no_grad():  # the bound is a projection after the step, no part of the function
            norms = vectors.square().sum(-1, keepdim=True).mul(2.0).sqrt()
            factors = (torch.tensor(limits, device=vectors.device)[:, None] / norms).clamp(max=1.0)
        return vectors * factors

    def _kept(self, rotations: torch.Tensor) -> torch.Tensor:
        """Which blocks turn; the others, a random share, are left out. Drawn on the CPU, the same on each
        device.

        While a forward waits for its backward the choice stays, as gradient checkpointing computes that
        forward's products again.
        """
        state = self.state
        waits = state is not None and state.recorded and not state.spent[0]
        if state is not None and state.kept is not None and (waits or in_backward()):
            return state.kept
        return torch.rand(len(rotations), 1, 1) >= self.form.dropout

    def _split(self, rotations: torch.Tensor) -> dict[int, torch.Tensor]:
        block = self.form.block
        sizes = [[len(weights(self.groups[index])[0]) for index in bucket] for _, bucket in self.buckets]
        totals = [width * sum(rows) for (width, _), rows in zip(self.buckets, sizes, strict=True)]
        found: dict[int, torch.Tensor] = {}
        for part, (width, bucket), rows in zip(rotations.split(totals), self.buckets, sizes, strict=True):
            wide = part.view(width, -1, block, block).permute(1, 2, 0, 3).reshape(-1, block, width * block)
            found |= dict(zip(bucket, wide.split(rows), strict=True))
        return found

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"state": None}  # a graph cannot be copied, and is made anew when asked for


def in_backward() -> bool:
    """Whether a backward pass runs in this thread: what is computed there is computed again."""
    return torch._C._current_graph_task_id() != -1


def weights(modules: Sequence[Any]) -> list[torch.Tensor]:
    return [module.weight for module in modules]


def without_autocast(tensor: torch.Tensor) -> torch.autocast:
    return torch.autocast(tensor.device.type, enabled=False)


def _as_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
