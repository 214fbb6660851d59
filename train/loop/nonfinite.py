"""Where a loss or a gradient stopped being finite: the failed step computed again, each module watched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from train.data.template import Sample
from train.loop.beforehand import named

Batch = dict[str, Any]


def total_norm(parameters: Iterable[torch.nn.Parameter]) -> float:
    """The norm of all gradients as they are; waits for the device."""
    gradients = [one.grad for one in parameters if one.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients)) if gradients else 0.0


def ruined(parameters: dict[str, torch.nn.Parameter]) -> list[str]:
    """Names of the parameters that hold NaN or infinity."""
    return [name for name, one in parameters.items() if not bool(torch.isfinite(one).all())]


def locate(
    model: torch.nn.Module,
    parameters: dict[str, torch.nn.Parameter],
    batches: Sequence[Batch],
    compute: Callable[[Batch], Any],
) -> tuple[str, Batch | None]:
    """In words, the first module whose output is not finite, or the first gradient on the way back from the
    loss that is not; and the batch where it was.

    `compute`: forward and backward of a batch; gradients are those of the last one afterwards.
    """
    for batch in batches:
        for parameter in parameters.values():
            parameter.grad = None
        with Watched(model) as watched:
            compute(batch)
        if watched.first:
            return f"the first output that is not finite is that of {watched.first}", batch
        if bad := [name for name, one in parameters.items() if _is_bad(one.grad)]:
            # Backward runs from the last layer to the first: the others have caught the fault from it.
            return f"the first gradient that is not finite is that of {bad[-1]}", batch
    return "computed again, everything is finite: the fault does not repeat", None


def _is_bad(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and not bool(torch.isfinite(tensor).all())


class Watched:
    """While entered, notes the first module of a model whose output is not finite, and what was so before."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.first = ""
        self.hooks: list[Any] = []

    def __enter__(self) -> Watched:
        for name, module in self.model.named_modules():
            self.hooks.append(module.register_forward_hook(self._look(name or type(module).__name__)))
        return self

    def __exit__(self, *rest: object) -> None:
        for hook in self.hooks:
            hook.remove()

    def _look(self, name: str) -> Callable[..., None]:
        def look(module: torch.nn.Module, inputs: Any, output: Any) -> None:
            if self.first or not any(_is_bad(tensor) for tensor in _floats(output)):
                return
            weights = [name for name, one in module.named_parameters() if _is_bad(one)]
            given = ", of inputs that are not either" if any(_is_bad(one) for one in _floats(inputs)) else ""
            holds = f", whose {', '.join(weights[:3])} is not finite" if weights else ""
            self.first = f"{name} ({type(module).__name__}){holds}{given}"

        return look


def _floats(value: Any) -> Iterable[torch.Tensor]:
    """Floating-point tensors in what a module takes or gives."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() else []
    parts = value.values() if isinstance(value, dict) else value
    return [one for part in parts for one in _floats(part)] if isinstance(value, (dict, list, tuple)) else []


def places(batch: Batch, samples: Sequence[Sample]) -> list[str]:
    """Where the rows of a batch come from: `file:line` of the samples that have the same tokens."""
    wanted = {tuple(ids) for ids in rows(batch)}
    return [sample.place for sample in samples if tuple(sample.input_ids) in wanted]


def rows(batch: Batch) -> list[list[int]]:
    """The token ids of each sample of a batch, of padded rows or of samples packed into one."""
    ids, mask, positions = (batch.get(name) for name in ("input_ids", "attention_mask", "position_ids"))
    assert ids is not None
    if mask is not None and mask.shape == ids.shape:
        return [row[kept.bool()].tolist() for row, kept in zip(ids, mask, strict=True)]
    if positions is None or positions.shape != ids.shape:
        return ids.tolist()
    found = []
    for row, places_in_row in zip(ids.tolist(), positions.tolist(), strict=True):
        starts = [index for index, place in enumerate(places_in_row) if place == 0]
        ends = [*starts[1:], len(row)]
        found += [row[start:end] for start, end in zip(starts, ends, strict=True)]
    return found


def rows_line(batch: Batch | None, samples: Sequence[Sample]) -> str:
    """The rows of a batch as a line of a message; empty where they cannot be told."""
    found = places(batch, samples) if batch else []
    return f"\nin the batch of\n{named(found)}" if found else ""
