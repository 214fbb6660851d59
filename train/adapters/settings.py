"""The settings of each adapter, as a recipe has them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from train.strict import MANY, Number, Strict, Whole


class LoraSettings(Strict):
    """LoRA, in PEFT's words."""

    r: Whole = Field(8, ge=1, le=MANY, description="rank of the update")
    lora_alpha: Number = Field(16, gt=0, description="the update is scaled by lora_alpha / r")
    use_rslora: bool = Field(
        False, description="rank-stabilised: the update is scaled by lora_alpha / sqrt(r) (arXiv 2312.03732)"
    )
    use_dora: bool = Field(
        False,
        description="DoRA: direction and length of the weights are trained apart (arXiv 2402.09353); slower",
    )
    lora_dropout: Number = Field(0.0, ge=0, lt=1, description="dropout on the adapter's input")


class OftSettings(Strict):
    """OFT, in PEFT's words; a rotation comes from a skew-symmetric matrix Q by a Cayley map."""

    oft_block_size: Annotated[Whole, Field(ge=2, le=MANY)] | Literal["auto"] = Field(
        32,
        description="size of a rotation block; must divide each layer's inputs; auto: 32, or for a layer "
        "that it does not divide the nearest size that does",
    )
    oft_num_blocks: Whole | None = Field(
        None, ge=1, le=MANY, description="blocks per layer in place of their size; PEFT's r"
    )
    cayley: Literal["exact", "series"] = Field(
        "exact",
        description="exact: orthogonal at any learning rate; series: Cayley-Neumann, orthogonal while Q is "
        "small",
    )
    num_cayley_neumann_terms: Whole = Field(5, ge=2, le=1000, description="terms of the series")
    on_drift: Literal["stop", "exact"] = Field(
        "stop",
        description="a series whose rotations drift: stop with exit 70 where the error is above 0.5, or go "
        "over to the exact map as soon as it is above 0.05",
    )
    coft: bool = Field(False, description="constrained OFT: Q stays within eps")
    eps: Number = Field(
        6e-5, gt=0, description="bound of coft on each block's Frobenius norm times sqrt(blocks)"
    )
    block_share: bool = Field(False, description="one rotation for all blocks of a layer")
    module_dropout: Number = Field(
        0.0, ge=0, lt=1, description="share of blocks that a training step leaves unturned"
    )

    def contradictions(self, fresh: bool) -> list[str]:
        """Settings that rule each other out, or do nothing beside the others.

        `fresh`: no trained adapter, whose own settings decide, is gone on with.
        """
        given = self.model_fields_set
        faults = []
        if self.oft_num_blocks is not None and "oft_block_size" in given:
            faults.append(
                f"oft.oft_num_blocks {self.oft_num_blocks} and oft.oft_block_size {self.oft_block_size} are "
                "both given: one follows from the other"
            )
        if self.cayley == "exact" and (fresh or "cayley" in given):
            unused = sorted(given & {"num_cayley_neumann_terms", "on_drift"})
            faults += [f"oft.{name} has no effect: oft.cayley is exact" for name in unused]
        if fresh and "eps" in given and not self.coft:
            faults.append("oft.eps has no effect: oft.coft is off")
        return faults
