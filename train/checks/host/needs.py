"""What an image needs of its host, as its build-info.json says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from train.errors import EXIT_CONFIG, UserError
from train.image import BuildInfo


@dataclass(frozen=True)
class Needs:
    """The parts of build-info.json about the host, each as the spec's fields (images/spec_host.py) are."""

    backend: str
    image: str
    variant: str | None
    runtime: dict[str, Any]
    driver: dict[str, Any]
    telemetry: dict[str, Any]
    errors: list[dict[str, Any]]

    @property
    def has_device(self) -> bool:
        """Whether there is anything to look for; the CPU needs nothing."""
        return bool(self.nodes or self.runtime["mounts"])

    @property
    def nodes(self) -> list[str]:
        """Every device node that is needed, whoever brings it."""
        return [*self.runtime["devices"], *self.runtime["injected_devices"]]

    @property
    def tool_folders(self) -> tuple[str, ...]:
        return tuple(self.runtime["tool_folders"])


def read_needs(image: BuildInfo) -> Needs:
    """UserError (exit 78) where the build info is older than these fields."""
    content = image.content
    try:
        return Needs(
            image.backend,
            content["image"],
            content["variant"],
            content["runtime"],
            content["driver"],
            content["telemetry"],
            content["errors"],
        )
    except KeyError as missing:
        message = f"{image.path}: says nothing of its host: {missing} is missing"
        raise UserError(message, "rebuild the image", EXIT_CONFIG) from None
