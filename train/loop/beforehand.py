"""What can be known to be wrong before the first step: rows, dtypes, the optimizer, the schedule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from train.data.template import Sample
from train.loop.findings import Finding

if TYPE_CHECKING:
    import torch

DUPLICATES_NOTED, DUPLICATES_WARNED = 0.01, 0.10
"""Shares of rows that repeat an earlier one. Deduplicated web text still holds about 1 % (Lee et al. 2021,
arXiv 2107.06499); a tenth is a mistake of whoever made the file."""
FEW_TARGETS = 0.01
"""A share of target tokens below this: a hundred tokens are computed for each that is learned."""
SHOWN_NAMES = 5


def data_findings(samples: Sequence[Sample], eval_samples: Sequence[Sample] | None) -> list[Finding]:
    """What the rows say before the first step."""
    keys = [_key(sample) for sample in samples]
    found = [_duplicates(keys), _few_targets(samples)]
    if eval_samples:
        found.append(_shared(set(keys), eval_samples))
    return [finding for finding in found if finding]


def _key(sample: Sample) -> int:
    return hash((tuple(sample.input_ids), tuple(sample.labels)))


def _duplicates(keys: list[int]) -> Finding | None:
    num_repeated = len(keys) - len(set(keys))
    share = num_repeated / len(keys)
    if share < DUPLICATES_NOTED:
        return None
    return Finding(
        "duplicate_rows",
        "warning" if share >= DUPLICATES_WARNED else "note",
        0,
        f"{num_repeated} of {len(keys)} training rows ({share:.1%}) repeat an earlier one",
        "repeated rows are learned by heart, and the loss falls without anything being understood",
        "remove them from the data; a row that should count more often is better varied",
    )


def _few_targets(samples: Sequence[Sample]) -> Finding | None:
    num_tokens = sum(len(sample.input_ids) for sample in samples)
    num_targets = sum(sample.num_target_tokens for sample in samples)
    if num_targets >= FEW_TARGETS * num_tokens:
        return None
    return Finding(
        "few_target_tokens",
        "warning",
        0,
        f"{num_targets} of {num_tokens} tokens ({num_targets / num_tokens:.2%}) are learned",
        "the prompts are far longer than the answers, or labels are on too little of them",
        "look at what is learned of some rows; shorten prompts; a larger batch makes the steps less noisy",
    )


def _shared(keys: set[int], eval_samples: Sequence[Sample]) -> Finding | None:
    num_shared = sum(_key(sample) in keys for sample in eval_samples)
    if not num_shared:
        return None
    share = num_shared / len(eval_samples)
    return Finding(
        "evaluation_rows_in_training",
        "warning" if share >= DUPLICATES_WARNED else "note",
        0,
        f"{num_shared} of {len(eval_samples)} evaluation rows ({share:.1%}) are training rows too",
        "the evaluation loss is then not that of rows which the model never saw",
        "take these rows out of one of the two files",
    )


def parameter_findings(
    parameters: dict[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer | None
) -> list[Finding]:
    """What would keep the adapter from being trained: not fp32 (a loss scaler refuses fp16 weights, bf16 ones
    lose small steps), or unknown to the optimizer.
    """
    import torch

    known = {id(one) for group in (optimizer.param_groups if optimizer else ()) for one in group["params"]}
    halves = [
        f"{name} ({str(one.dtype).removeprefix('torch.')})"
        for name, one in parameters.items()
        if one.dtype != torch.float32
    ]
    strangers = [name for name, one in parameters.items() if id(one) not in known] if optimizer else []
    found = []
    if halves:
        found.append(
            Finding(
                "adapter_not_fp32",
                "stop",
                0,
                f"{len(halves)} of {len(parameters)} trained tensors are not fp32:\n{named(halves)}",
                "fp16 weights cannot be trained under a loss scale, bf16 ones lose small steps",
                "load an adapter that is stored in fp32, or let isotune attach it",
            )
        )
    if strangers:
        found.append(
            Finding(
                "not_in_optimizer",
                "stop",
                0,
                f"{len(strangers)} of {len(parameters)} trained tensors are not in the optimizer:\n"
                f"{named(strangers)}",
                "nothing would ever change them",
                "use the versions of the image's lock; with those this is a fault of isotune: report it",
            )
        )
    return found


def warmup_finding(warmup_steps: int, max_steps: int) -> Finding | None:
    """A run that ends before its warmup does."""
    if warmup_steps < max_steps:
        return None
    return Finding(
        "all_warmup",
        "warning",
        0,
        f"the warmup takes {warmup_steps} steps, the run {max_steps}",
        f"the learning rate comes no higher than {(max_steps - 1) / warmup_steps:.0%} of what is asked for",
        f"--set warmup_steps={max_steps // 10}, or train longer",
    )


def named(names: Iterable[str]) -> str:
    """Names in lines, the first few of them and how many more there are."""
    ordered = sorted(names)
    more = [f"and {len(ordered) - SHOWN_NAMES} more"] if len(ordered) > SHOWN_NAMES else []
    return "\n".join(ordered[:SHOWN_NAMES] + more)
