"""What a spec says of the host that runs an image: nodes, mounts, driver, tools, errors, device policy."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from images.spec_types import AbsolutePath, EnvName, Name, Part, Pattern, Precision, require_group


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
    needs_mounts: bool = Field(
        default=False, description="true where the device plugin does not bring `mounts` along"
    )


class EngineSupport(Part):
    """What an engine may have for a backend. Its options then stand for nodes, mounts and docker_options."""

    runtime: Name | None = Field(default=None, description="the name of a runtime of the engine")
    cdi: str | None = Field(
        default=None, pattern=r"^[\w.-]+/[\w.-]+$", description="a kind of device, vendor/class"
    )
    options: list[str] = Field(min_length=1, description="{indexes} stands for the cards' numbers")
    remedy: str = Field(description="how a host gets it")

    @model_validator(mode="after")
    def is_one_of_two(self) -> EngineSupport:
        if (self.runtime is None) == (self.cdi is None):
            raise ValueError("gives `runtime` or `cdi`, one of the two")
        return self


class Library(Part):
    """A file of the driver that torch loads."""

    name: str = Field(pattern=r"^[\w.+-]+\.so[\w.]*$", description="such as libcuda.so.1")
    folders: list[AbsolutePath] = Field(min_length=1, description="where it may lie, besides LD_LIBRARY_PATH")
    given_by: str = Field(description="the option of `docker run` that brings it")


class ConditionalOption(Part):
    """An option of `docker run` that is for some hosts only."""

    option: str
    when: Literal["memlock_limited", "memory_policy_filtered", "tracing_limited"]
    why: str


class Runtime(Part):
    devices: list[AbsolutePath] = Field(default=[], description="device nodes; {index} is a card's number")
    optional_devices: list[AbsolutePath] = Field(default=[], description="device nodes passed on if present")
    injected_devices: list[AbsolutePath] = Field(
        default=[], description="device nodes that the engine's own runtime brings: looked for, never named"
    )
    mounts: list[str] = Field(default=[], description="host paths, as path or path:path:ro")
    optional_mounts: list[str] = Field(default=[], description="host paths mounted if present")
    libraries: list[Library] = Field(default=[], description="files of the driver that torch loads")
    tool_folders: list[AbsolutePath] = Field(default=[], description="folders of tools, besides PATH")
    groups: list[str] = Field(default=[], description="groups that own the device nodes")
    docker_options: list[str] = Field(default=[], description="further options of `docker run`")
    conditional_options: list[ConditionalOption] = Field(
        default=[], description="options of `docker run` that only some hosts need"
    )
    engine_support: list[EngineSupport] = Field(
        default=[], description="what an engine may have instead, the first that it has is used"
    )
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
    patterns: list[Pattern] = Field(
        default=[], description="regular expressions with a group `version`, the first that matches is used"
    )

    @model_validator(mode="after")
    def patterns_have_a_version(self) -> Driver:
        require_group(self.patterns, "version")
        return self


class CardTool(Part):
    """A tool of the vendor that tells about cards."""

    command: str
    cards: list[Pattern] = Field(
        min_length=1,
        description="forms of its output: each match is a card, its groups are fields of "
        "train.checks.host.cards.Card; `device` is a number that goes before `index`",
    )
    healthy: list[str] = Field(default=[], description="what its `health` says of a sound card")

    @model_validator(mode="after")
    def cards_have_an_index(self) -> CardTool:
        require_group(self.cards, "index")
        return self


class Telemetry(Part):
    tools: list[CardTool] = Field(default=[], description="the first that answers is used")
    warn_power_share: float = Field(default=0.97, gt=0, description="warn from this share of a card's cap on")
    warn_celsius: float = Field(default=85.0, gt=0, description="warn from this temperature on")


class KnownError(Part):
    """Words of a vendor's library or tool, with what they mean."""

    pattern: Pattern
    cause: str
    cure: str
    exit_code: Literal[69, 70] = Field(
        default=69, description="69: the device cannot be used; 70: training went wrong"
    )
    source: str = Field(description="where these words were read, with its confidence")


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
