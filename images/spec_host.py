"""What a spec says of the host that runs an image: nodes, mounts, driver, device policy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from images.spec_types import AbsolutePath, EnvName, Name, Part, Precision


class RankTable(Part):
    """A ConfigMap that the cluster's operator fills with addresses and numbers of cards."""

    config_map: str = Field(pattern=r"\{name\}", description="its name; {name} is the job's")
    key: str = Field(description="the file in it")
    initial: str = Field(description="what the file holds until it is filled")
    mount: AbsolutePath


class Kubernetes(Part):
    resource: str | None = Field(description="the default extended resource, or null")
    alternatives: list[str] = Field(default=[], description="names used by other plugins or older versions")
    scheduler_labels: dict[str, str] = Field(
        default={}, description="labels that the scheduler's plugin reads on a Volcano job and its pods"
    )
    cards_variable: EnvName | None = Field(
        default=None, description="variable that takes the cards from the plugin's annotation, under Volcano"
    )
    rank_table: RankTable | None = None


class Runtime(Part):
    devices: list[AbsolutePath] = Field(default=[], description="device nodes; {index} is a card's number")
    optional_devices: list[AbsolutePath] = Field(default=[], description="device nodes passed on if present")
    mounts: list[str] = Field(default=[], description="host paths, as path or path:path:ro")
    optional_mounts: list[str] = Field(default=[], description="host paths mounted if present")
    groups: list[str] = Field(default=[], description="groups that own the device nodes")
    docker_options: list[str] = Field(default=[], description="further options of `docker run`")
    visible_devices_variable: EnvName | None
    interface_variables: list[EnvName] = Field(
        default=[], description="variables that name the network card for talk between nodes"
    )
    shm_size: str = Field(pattern=r"^\d+[kmg]$", description="a size such as 16g")
    kubernetes: Kubernetes


class Driver(Part):
    minimum: str = Field(description="lowest driver version in quotes, `none` or `unknown`")
    maximum: str = Field(description="highest driver version in quotes, `none` or `unknown`")
    listed: list[str] = Field(default=[], description="versions named as compatible")
    refused: list[str] = Field(default=[], description="versions named as not compatible")
    read_from: list[str] = Field(default=[], description="commands or files that tell the host's driver")


class Allocator(Part):
    variable: EnvName
    value: str


class LossScale(Part):
    dynamic: bool
    initial: int = Field(gt=0)


class DevicePolicy(Part):
    """Defaults of the run side per device type; they reach it through build-info.json."""

    device_type: Name
    precision: list[Precision] = Field(
        min_length=1, description="candidates: the first that passes its probe"
    )
    precision_on_request: list[Precision] = Field(default=[], description="used only when asked for by name")
    attention: list[Literal["sdpa", "eager"]] = Field(min_length=1)
    pinned_memory: bool
    process_group: Name
    environment: dict[EnvName, str] = Field(default={})
    allocator: Allocator | None = None
    loss_scale: LossScale | None = Field(default=None, description="for fp16; null: no scaling")
