"""Models that do not fit on one device: frozen weights are spread over the ranks, the adapter is on each.

torch's FSDP gathers the weights of a decoder layer when it computes, and lets go of them afterwards. What is
trained stays whole on every rank and DDP averages its gradients: it is small, and batched adapters read all
of it at once. Not by the Trainer's `fsdp`: accelerate has none on the CPU, where it could not be tested.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from train.errors import EXIT_CONFIG, EXIT_UNAVAILABLE, UserError
from train.loop import processes

if TYPE_CHECKING:
    import torch

    from train.config import RunConfig


def require_shardable(config: RunConfig) -> None:
    """UserError where `fsdp` is asked for and cannot be, before anything is loaded: exit 78 with one process,
    exit 69 with a torch that cannot leave out what is trained.
    """
    if config.fsdp == "off":
        return
    if processes.size() == 1:
        raise UserError(
            "fsdp: weights are spread over several processes, this run has one",
            "train --nproc N, or --set fsdp=off",
            EXIT_CONFIG,
        )
    from torch.distributed.fsdp import fully_shard

    if "ignored_params" not in inspect.signature(fully_shard).parameters:
        raise UserError(
            "fsdp: this torch's fully_shard has no ignored_params", "torch 2.7 has it", EXIT_UNAVAILABLE
        )


def shard(model: torch.nn.Module, device_type: str) -> list[str]:
    """Spread the frozen weights of the decoder layers over the ranks, in place; what to say of it.

    model: on the host, the adapter attached; afterwards on the device. Embeddings and output head stay whole:
    the loss reads the head's weight by itself. UserError (exit 78) where no decoder layers are found.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    decoder, layers = _decoder(model)
    mesh = init_device_mesh(device_type, (processes.size(),))
    trained = {one for one in model.parameters() if one.requires_grad}
    num_spread = 0
    for layer in layers:
        frozen = {one for one in layer.parameters() if one not in trained}
        num_spread += sum(one.numel() for one in frozen)
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, ignored_params=trained)
    # The root of them all, for one order of gathering; what it holds itself stays as it is.
    fully_shard(decoder, mesh=mesh, ignored_params=trained | _of_none(decoder, layers))
    model.to(device_type)
    names = [name for name, one in model.named_parameters() if not one.requires_grad]
    ignoring: Any = DistributedDataParallel
    ignoring._set_params_and_buffers_to_ignore_for_model(model, names)
    return [
        f"fsdp: {num_spread:,} frozen weights of {len(layers)} layers are spread over {processes.size()} "
        "processes; embeddings, head and adapter are on each"
    ]


def _decoder(model: torch.nn.Module) -> tuple[torch.nn.Module, list[torch.nn.Module]]:
    """The module that holds the largest list of modules, and these: a decoder and its layers."""
    import torch

    held = [
        (parent, one)
        for parent in model.modules()
        for one in parent.children()
        if isinstance(one, torch.nn.ModuleList) and len(one)
    ]
    if not held:
        raise UserError("fsdp: the model has no list of layers", "--set fsdp=off", EXIT_CONFIG)
    decoder, layers = max(held, key=lambda pair: _weights(pair[1]))
    return decoder, list(layers)


def _of_none(decoder: torch.nn.Module, layers: list[torch.nn.Module]) -> set[torch.nn.Parameter]:
    """The decoder's parameters that belong to none of its layers."""
    inside = {id(one) for layer in layers for one in layer.parameters()}
    return {one for one in decoder.parameters() if id(one) not in inside}


def _weights(module: torch.nn.Module) -> int:
    return sum(one.numel() for one in module.parameters())
