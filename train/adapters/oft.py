"""OFT in PEFT's format: block-diagonal rotations of each layer's input (arXiv 2306.07280, 2506.19847)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from train.config import RunConfig

if TYPE_CHECKING:
    from peft import OFTConfig, PeftModel

    from train.adapters.attach import Target


def faults(config: RunConfig, targets: list[Target]) -> list[str]:
    """Layers whose inputs the block does not divide.

    PEFT would take another size with no more than a warning.
    """
    block = config.oft.oft_block_size
    return [
        f"oft.oft_block_size: {block} does not divide the {target.in_features} inputs of {target.kind}"
        for target in targets
        if target.in_features % block
    ]


def hint(config: RunConfig, targets: list[Target]) -> str:
    """The sizes that divide every layer's inputs."""
    smallest = min(target.in_features for target in targets)
    sizes = [
        size for size in range(2, smallest + 1) if all(target.in_features % size == 0 for target in targets)
    ]
    fitting = ", ".join(map(str, sizes[:12])) or "none: name fewer target_modules"
    return f"--set oft.oft_block_size=N; sizes that divide all of them: {fitting}"


def peft_config(config: RunConfig, kinds: list[str]) -> OFTConfig:
    """PEFT's configuration for these kinds of target modules."""
    from peft import OFTConfig

    return OFTConfig(
        task_type="CAUSAL_LM",
        target_modules=kinds,
        r=0,
        oft_block_size=config.oft.oft_block_size,
        use_cayley_neumann=config.oft.cayley == "series",
    )


def orthogonality_error(model: PeftModel) -> float:
    """The largest |R R^T - I| over all rotations of the model, computed in fp32."""
    import torch

    worst = 0.0
    for module in model.modules():
        for rotation in getattr(module, "oft_R", {}).values():
            with torch.no_grad():
                turned = rotation._cayley_batch(
                    rotation.weight.float(),
                    rotation.block_size,
                    rotation.use_cayley_neumann,
                    rotation.num_cayley_neumann_terms,
                )
                error = turned @ turned.transpose(-1, -2) - torch.eye(turned.shape[-1], device=turned.device)
            worst = max(worst, error.abs().max().item())
    return worst
