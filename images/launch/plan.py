"""A launch with everything decided: what each shape of file is made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from images.launch.docker_options import Extras, extras
from images.launch.options import LaunchOptions, Shape
from images.launch.places import Place
from images.launch.sizes import sum_of_sizes
from images.spec import BackendSpec

CONTAINER = "train"
CPUS_PER_PROCESS = 4
MEMORY_PER_PROCESS = "16g"
# Between the end of a worker's time to save and the end of the container's.
MARGIN_SECONDS = 30


@dataclass(frozen=True)
class Launch:
    """`places`: role -> where. `notes`: what a reader of the file has to know, in lines."""

    shape: Shape
    spec: BackendSpec
    options: LaunchOptions
    image: str
    places: dict[str, Place]
    recipe: str | None = None
    recipe_file: Path | None = None
    recipe_text: str = ""
    notes: list[str] = field(default_factory=list)

    @property
    def resource(self) -> str | None:
        return self.options.resource or self.spec.runtime.kubernetes.resource

    @property
    def devices(self) -> int:
        if self.options.devices is not None:
            return self.options.devices
        return len(self.options.device_ids) or int(self.has_devices)

    @property
    def has_devices(self) -> bool:
        """Does the backend have cards at all?"""
        return self.spec.runtime.visible_devices_variable is not None

    @property
    def nproc(self) -> int:
        return self.options.nproc or max(1, self.devices)

    @property
    def nodes(self) -> int:
        return self.options.nodes

    @property
    def shm(self) -> str:
        return self.options.shm or self.spec.runtime.shm_size

    @property
    def cpus(self) -> int:
        return self.options.cpus or CPUS_PER_PROCESS * self.nproc

    @property
    def memory(self) -> str:
        """The memory of a node: /dev/shm counts as its container's memory."""
        return self.options.memory or sum_of_sizes(self.shm, *[MEMORY_PER_PROCESS] * self.nproc)

    @property
    def shutdown_seconds(self) -> int:
        """The time that workers have to save after SIGTERM; less than the container's."""
        return self.options.grace - MARGIN_SECONDS

    @property
    def extras(self) -> Extras:
        """The spec's further options of `docker run`, in parts."""
        runtime = self.spec.runtime
        return extras([*runtime.docker_options, *(item.option for item in runtime.conditional_options)])
