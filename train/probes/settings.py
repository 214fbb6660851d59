"""What a recipe says of the device beyond its name, precision and attention."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from train.strict import Number, Strict


def _words(value: Any) -> Any:
    """YAML reads on and off as booleans."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


class DeviceFields(Strict):
    """Fields of a recipe that decide how a device is used."""

    pinned_memory: Annotated[Literal["auto", "on", "off"], BeforeValidator(_words)] = Field(
        "auto",
        description="batches wait in pinned memory; auto: where the device policy says so and it works",
    )
    loss_scale: Literal["auto"] | Annotated[Number, Field(gt=0)] = Field(
        "auto", description="first value of fp16's dynamic loss scale"
    )
    probe: Annotated[Literal["auto", "again", "off"], BeforeValidator(_words)] = Field(
        "auto",
        description="the device is compared with the CPU before training, once for the same device, driver "
        "and versions; again: measure anew; off: trust it",
    )

    def device_faults(self, precision: str) -> list[str]:
        """Settings that do nothing beside the others."""
        if self.loss_scale != "auto" and precision not in ("auto", "fp16"):
            return [f"loss_scale {self.loss_scale:g} has no effect: precision is {precision}"]
        return []
