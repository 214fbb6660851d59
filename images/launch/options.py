"""The options of `build.py launch`: one strict model whose fields are both --flags and keys of --set."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from images.launch.sizes import Duration, Size, duration_seconds, size_bytes

SHAPES = ("compose", "job", "indexed-job", "jobset", "trainjob", "volcano")
LABEL = re.compile(r"^(?:[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9](?:[-\w.]{0,61}[A-Za-z0-9])?$")
LABEL_VALUE = re.compile(r"^(?:[A-Za-z0-9](?:[-\w.]{0,61}[A-Za-z0-9])?)?$")
DNS_LABEL = r"^[a-z](?:[-a-z0-9]*[a-z0-9])?$"

MOST = 2**31 - 1
"""Of Kubernetes' numbers of users, groups and incidents."""

Shape = Literal["compose", "job", "indexed-job", "jobset", "trainjob", "volcano"]
DnsLabel = Annotated[str, Field(pattern=DNS_LABEL, description="lower-case letters, digits and dashes")]
GroupId = Annotated[
    int, Field(ge=0, le=MOST, description="a number, as `stat -c %g` of a device node tells it")
]
Reference = Annotated[
    str, Field(pattern=r"^[\w][\w./:-]*(?:@sha256:[0-9a-f]{64})?$", description="NAME:TAG or NAME@sha256:...")
]


def _labels(values: dict[str, str]) -> dict[str, str]:
    wrong = [key for key in values if not LABEL.match(key)]
    wrong += [value for value in values.values() if not LABEL_VALUE.match(value)]
    if wrong:
        raise ValueError(f"{', '.join(map(repr, wrong))}: no label of Kubernetes")
    return values


def _annotations(values: dict[str, str]) -> dict[str, str]:
    wrong = [key for key in values if not LABEL.match(key)]
    if wrong:
        raise ValueError(f"{', '.join(map(repr, wrong))}: no key of an annotation of Kubernetes")
    return values


def _variables(values: dict[str, str]) -> dict[str, str]:
    wrong = [key for key in values if not re.match(r"^[A-Za-z_]\w*$", key)]
    if wrong:
        raise ValueError(f"{', '.join(map(repr, wrong))}: no name of a variable")
    return values


def _tolerations(values: list[str]) -> list[str]:
    wrong = [value for value in values if not TOLERATION.match(value)]
    if wrong:
        raise ValueError(f"{', '.join(map(repr, wrong))}: is not KEY[=VALUE][:EFFECT]")
    return values


def _settings(values: dict[str, str]) -> dict[str, str]:
    wrong = [key for key in values if not re.match(r"^[a-z][\w.]*$", key)]
    if wrong:
        raise ValueError(f"{', '.join(map(repr, wrong))}: no name of a recipe's field")
    return values


TOLERATION = re.compile(
    r"^(?P<key>[^=:\s]+)(?:=(?P<value>[^:\s]*))?(?::(?P<effect>NoSchedule|PreferNoSchedule|NoExecute))?$"
)
Labels = Annotated[dict[str, str], AfterValidator(_labels)]
Annotations = Annotated[dict[str, str], AfterValidator(_annotations)]
Settings = Annotated[dict[str, str], AfterValidator(_settings)]
Variables = Annotated[dict[str, str], AfterValidator(_variables)]


class LaunchOptions(BaseModel):
    """What a launch may be told. Defaults exist for all but model, data and output."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: Reference | None = Field(None, description="the image; NAME@sha256:DIGEST can never move")
    model: str = Field(description="a host path (compose) or pvc:NAME[/sub/path]: the checkpoint's folder")
    data: str = Field(description="a host path (compose) or pvc:NAME[/sub/path]: a file or a folder of rows")
    output: str = Field(description="a host path (compose) or pvc:NAME[/sub/path] for the results")
    eval_data: str | None = Field(None, description="as data: rows for evaluation")
    adapter: Literal["lora", "oft"] | None = Field(None, description="lora or oft (lora, or the recipe's)")
    recipe: str | None = Field(None, description="a recipe that ships, or a YAML file, which travels along")
    train: Settings = Field({}, description="a field of the recipe, such as lora.r=16")
    devices: int | None = Field(None, ge=0, le=4096, description="cards of each node (1; cpu: 0)")
    device_ids: list[int] = Field([], description="compose: which cards, such as 2,3")
    nproc: int | None = Field(None, ge=1, le=4096, description="processes of each node (one per card)")
    nodes: int = Field(1, ge=1, le=10_000, description="nodes of the job")
    node_rank: int | None = Field(
        None, ge=0, le=10_000, description="compose on several hosts: this host's number"
    )
    master_addr: str | None = Field(None, pattern=r"^\S+$", description="compose on several hosts: node 0")
    master_port: int = Field(29500, ge=1024, le=65535, description="the port at which nodes meet")
    name: DnsLabel = Field("isotune", max_length=50, description="of the job, and of the run's folder")
    namespace: DnsLabel | None = Field(None, max_length=63, description="of Kubernetes")
    resource: str | None = Field(None, pattern=r"^[a-z0-9.-]+/[\w.-]+$", description="the plugin's resource")
    cpus: int | None = Field(
        None, ge=1, le=65_536, description="CPUs of each node (4 per process; compose: no limit)"
    )
    memory: Size | None = Field(
        None, description="of each node, shm included (16g per process and shm; compose: no limit)"
    )
    shm: Size | None = Field(None, description="size of /dev/shm (the backend's)")
    scratch: Size = Field("8g", description="room in /tmp for caches")
    uid: int = Field(1000, ge=1, le=MOST, description="the user; the image's own by default")
    gid: int = Field(1000, ge=0, le=MOST, description="its group, and that of the volumes")
    groups: list[GroupId] = Field([], description="further groups by number, those of the device nodes")
    env: Variables = Field({}, description="a variable of the container")
    interface: str | None = Field(
        None, pattern=r"^[\w=^.,:-]+$", description="the network card that nodes use to talk, such as eth0"
    )
    network: Literal["none", "bridge", "host"] | None = Field(
        None, description="compose: none, or one of its own for several nodes"
    )
    runtime: str | None = Field(
        None, pattern=r"^[\w.-]+$", description="container runtime: a runtimeClassName, or compose's runtime"
    )
    optional: list[str] = Field(
        ["devices"], description="compose: optional device nodes and mounts to pass on: paths, devices, none"
    )
    exceptions: bool = Field(
        False, description="the vendor's further options (capabilities, seccomp, ulimits): where doctor asks"
    )
    verify: bool = Field(False, description="run `train verify` first, in a container of its own")
    queue: str | None = Field(
        None, pattern=r"^[\w.-]+$", description="Kueue's LocalQueue, or Volcano's queue"
    )
    priority: str | None = Field(None, pattern=r"^[\w.-]+$", description="a PriorityClass")
    node_selector: Labels = Field({}, description="a label that nodes must have")
    tolerations: Annotated[list[str], AfterValidator(_tolerations)] = Field(
        [], description="a taint of nodes to tolerate: KEY[=VALUE][:EFFECT]"
    )
    labels: Labels = Field({}, description="a label of the job and its pods")
    annotations: Annotations = Field({}, description="an annotation of the job and its pods")
    spread: bool = Field(True, description="never two nodes of the job on one host")
    grace: int = Field(300, ge=60, le=MOST, description="seconds between SIGTERM and SIGKILL")
    deadline: Duration = Field("7d", description="the job fails after this time: 12h, 7d")
    ttl: Duration = Field("7d", description="a finished job is deleted after this time")
    retries: int = Field(
        3, ge=0, le=MOST, description="incidents after which the job starts again and resumes"
    )
    rank_table: bool = Field(False, description="mount the table of ranks that the cluster's operator fills")
    driver_mounts: bool = Field(
        False,
        description="mount the driver's libraries by hostPath: nodes lack the vendor's container runtime",
    )
    annotated_devices: bool = Field(
        True,
        description="volcano: take the cards from the annotation of its plugin, where the backend has one",
    )

    @property
    def deadline_seconds(self) -> int:
        return duration_seconds(self.deadline)

    @property
    def ttl_seconds(self) -> int:
        return duration_seconds(self.ttl)

    @property
    def scratch_bytes(self) -> int:
        return size_bytes(self.scratch)


KUBERNETES = tuple(shape for shape in SHAPES if shape != "compose")
# Options that some shapes have no place for: given there, they are refused. Others go everywhere.
PLACES = {
    "device_ids": ("compose",),
    "node_rank": ("compose",),
    "master_addr": ("compose",),
    "network": ("compose",),
    "optional": ("compose",),
    **dict.fromkeys(
        ("namespace", "resource", "queue", "priority", "node_selector", "tolerations", "labels"), KUBERNETES
    ),
    **dict.fromkeys(("annotations", "spread", "retries", "driver_mounts"), KUBERNETES),
    "master_port": ("compose", "indexed-job", "jobset", "volcano"),
    "deadline": ("job", "indexed-job", "jobset", "trainjob"),
    "ttl": ("job", "indexed-job", "jobset", "volcano"),
    "rank_table": ("volcano",),
    "annotated_devices": ("volcano",),
}
