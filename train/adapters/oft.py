"""OFT in PEFT's format: block-diagonal rotations of each layer's input (arXiv 2306.07280, 2506.19847)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from train.config import RunConfig
from train.errors import EXIT_TRAINING, UserError

if TYPE_CHECKING:
    import torch
    from peft import OFTConfig, PeftModel

    from train.adapters.attach import Target

AUTO_BLOCK = 32
"""The size that `oft_block_size: auto` comes nearest to; PEFT's default and the paper's setting."""
FIRST_MOMENTS = ("exp_avg", "momentum_buffer")
OTHER_STATE = ("step", "exp_avg_sq", "max_exp_avg_sq")


def block_of(config: RunConfig, inputs: int) -> int:
    """The block size for a layer of so many inputs; it need not divide them unless it is `auto`."""
    settings = config.oft
    if settings.oft_num_blocks is not None:
        return max(1, inputs // settings.oft_num_blocks)
    if settings.oft_block_size == "auto":
        return nearest_divisor(inputs, AUTO_BLOCK)
    return settings.oft_block_size


def nearest_divisor(inputs: int, wanted: int) -> int:
    """The divisor of `inputs` that is nearest to `wanted`, of two equally near ones the smaller.

    PEFT comes to the same one for a config that says `wanted`, so that its files have the same shapes.
    """
    if wanted >= inputs:
        return inputs
    return min(divisors(inputs), key=lambda size: (abs(size - wanted), size))


def divisors(number: int) -> list[int]:
    """All divisors of a number but 1, in order."""
    return [size for size in range(2, number + 1) if number % size == 0]


def faults(config: RunConfig, targets: list[Target]) -> list[str]:
    """Layers whose inputs the blocks do not divide.

    PEFT would take another size with no more than a warning.
    """
    found = []
    for target in targets:
        inputs, blocks = target.in_features, config.oft.oft_num_blocks
        if blocks is not None and (inputs % blocks or inputs // blocks < 2):
            fitting = [inputs // size for size in reversed(divisors(inputs))]
            found.append(
                f"oft.oft_num_blocks: {blocks} does not divide the {inputs} inputs of {target.kind} into "
                f"blocks of 2 or more; near it: {_near(fitting, blocks)}"
            )
        elif blocks is None and inputs % (block := block_of(config, inputs)):
            found.append(
                f"oft.oft_block_size: {block} does not divide the {inputs} inputs of {target.kind}; "
                f"near it: {_near(divisors(inputs), block)}"
            )
    return found


def _near(sizes: list[int], wanted: int) -> str:
    below = [size for size in sizes if size < wanted][-3:]
    above = [size for size in sizes if size > wanted][:3]
    return ", ".join(map(str, below + above))


def hint(config: RunConfig, targets: list[Target]) -> str:
    """The sizes that divide every layer's inputs, and the way to one size per layer."""
    common = set.intersection(*(set(divisors(target.in_features)) for target in targets))
    if config.oft.oft_num_blocks is not None:
        common = set.intersection(
            *({target.in_features // size for size in divisors(target.in_features)} for target in targets)
        )
        name = "oft_num_blocks"
    else:
        name = "oft_block_size"
    fitting = ", ".join(map(str, sorted(common)[:12])) or "none"
    instead = " in place of oft_num_blocks" if name == "oft_num_blocks" else ""
    return (
        f"--set oft.{name}=N, that divide all of them: {fitting}; or --set oft.oft_block_size=auto{instead}"
    )


def layer_settings(layer: Any, adapter: str) -> dict[str, int]:
    """What the start-up table says of a layer with this adapter."""
    return {"oft_block_size": layer.oft_block_size[adapter], "oft_num_blocks": layer.r[adapter]}


def peft_config(config: RunConfig, names: list[str]) -> OFTConfig:
    """PEFT's configuration for these target modules. Where the size is `auto`, PEFT adjusts it by the rule
    of `nearest_divisor`.
    """
    from peft import OFTConfig

    oft = config.oft
    size = AUTO_BLOCK if oft.oft_block_size == "auto" else oft.oft_block_size
    return OFTConfig(
        task_type="CAUSAL_LM",
        target_modules=names,
        r=oft.oft_num_blocks or 0,
        oft_block_size=0 if oft.oft_num_blocks else size,
        use_cayley_neumann=oft.cayley == "series",
        num_cayley_neumann_terms=oft.num_cayley_neumann_terms,
        coft=oft.coft,
        eps=oft.eps,
        block_share=oft.block_share,
        module_dropout=oft.module_dropout,
    )


def attached_faults(config: RunConfig, targets: list[Target], model: PeftModel) -> list[str]:
    """Layers whose blocks PEFT made of another size than the table says."""
    modules = dict(model.get_base_model().named_modules())
    return [
        f"adapter: {name} got blocks of {modules[name].oft_block_size['default']}, {block} is due"
        for target in targets
        for block in [block_of(config, target.in_features)]
        for name in target.modules
        if modules[name].oft_block_size["default"] != block
    ]


def batched(model: PeftModel) -> PeftModel:
    """The same model, computing all its rotations in one batch."""
    from train.adapters import oft_layer

    return oft_layer.batched(model)


def orthogonality_error(model: PeftModel) -> float:
    """The largest |R R^T - I| over all rotations of the model as its weights are now, computed in fp32."""
    import torch
    from peft.tuners.oft.layer import OFTLayer

    from train.adapters import cayley
    from train.adapters.oft_layer import layer_rotations

    layers = [module for module in model.modules() if isinstance(module, OFTLayer)]
    errors = [
        cayley.orthogonality_error(layer_rotations(layer, name)) for layer in layers for name in layer.oft_R
    ]
    return torch.stack(errors).max().item() if errors else 0.0


def is_exact(model: PeftModel) -> bool:
    """Whether the adapter's config names the exact Cayley map."""
    active: Any = model.peft_config[model.active_adapter]
    return not active.use_cayley_neumann


def set_cayley(model: PeftModel, exact: bool) -> None:
    """Read the weights by the exact map or by the series from now on; the weights stay what they are."""
    from peft.tuners.oft.layer import OFTLayer

    adapter = model.active_adapter
    active: Any = model.peft_config[adapter]
    active.use_cayley_neumann = not exact
    for layer in model.modules():
        if isinstance(layer, OFTLayer) and adapter in layer.oft_R:
            rotation: Any = layer.oft_R[adapter]
            rotation.use_cayley_neumann = not exact
    batched(model)


def convert_cayley(model: PeftModel, exact: bool, optimizer: torch.optim.Optimizer | None = None) -> None:
    """Go over to the other map with the same rotations, as far as it can express them.

    PEFT's two forms are transposes of each other: series(Q) is near exact(-Q). So Q is negated, and with it
    its gradient and the gradient's mean in the optimizer; the mean of squares stays. With five terms
    exact(-Q) is the rotation nearest to series(Q): the series is that times I - Q^4, while norm(Q) < 1.
    UserError (exit 70) for an optimizer whose state is of another kind.
    """
    import torch

    if is_exact(model) == exact:
        return
    adapter = f".oft_R.{model.active_adapter}."
    parameters = [parameter for name, parameter in model.named_parameters() if adapter in name]
    states = [optimizer.state.get(parameter, {}) for parameter in parameters] if optimizer else []
    if unknown := {key for state in states for key in state} - {*FIRST_MOMENTS, *OTHER_STATE}:
        raise UserError(
            f"oft.on_drift: the optimizer holds {', '.join(sorted(unknown))}, which cannot be converted",
            "take --set oft.cayley=exact from the start",
            EXIT_TRAINING,
        )
    with torch.no_grad():
        moments = [state[key] for state in states for key in FIRST_MOMENTS if key in state]
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        for tensor in [*parameters, *moments, *gradients]:
            tensor.neg_()
    set_cayley(model, exact)
