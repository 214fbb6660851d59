"""The lines that start this image on this host: for docker, compose and Kubernetes."""

from __future__ import annotations

import json
from dataclasses import dataclass

from train.checks.host.needs import Needs
from train.checks.host.nodes import CARD, cards, ends, gids, named_gids
from train.checks.host.root import Root

LISTS = {
    "device": "devices",
    "volume": "volumes",
    "group-add": "group_add",
    "cap-add": "cap_add",
    "security-opt": "security_opt",
    "env": "environment",
}
"""An option of `docker run` that may be given many times -> its key in a compose file."""
SINGLE = {"shm-size": "shm_size", "gpus": "gpus", "runtime": "runtime"}
DATA = (("/path/to/model", "/model", True), ("/path/to/data", "/data", True), ("/path/to/out", "/out", False))
TRAIN = [
    "train",
    "--adapter=oft",
    "--model=/model",
    "--data=/data/train.jsonl",
    "--output=/out/run",
]


@dataclass(frozen=True)
class Engine:
    """What is known of the engine that would start the image: its runtimes, and the CDI kinds of the host."""

    runtimes: tuple[str, ...] = ()
    cdi: tuple[str, ...] = ()


def device_options(
    needs: Needs, root: Root, engine: Engine, conditions: set[str], on_host: bool = False
) -> list[str]:
    """The options that give a container the device, as `--name=value`: cards by the numbers found, groups by
    number.

    Where the engine has support for the backend, its own options stand for nodes and mounts.
    """
    found = cards(needs, root) or [0]
    own = supported(needs, engine)
    if own:
        indexes = ",".join(map(str, found))
        options = [option.replace("{indexes}", indexes) for option in own]
    else:
        options = [*_nodes(needs, root, found), *_mounts(needs, root), *needs.runtime["docker_options"]]
    # Whoever brings a node in, its owner and mode stay the host's.
    groups = gids(needs, root) if own else _groups(needs, root, on_host)
    options += [f"--group-add={gid}" for gid in groups]
    options += [one["option"] for one in needs.runtime["conditional_options"] if one["when"] in conditions]
    return [*options, f"--shm-size={needs.runtime['shm_size']}"]


def supported(needs: Needs, engine: Engine) -> list[str]:
    """The options of the first support that the engine has."""
    for support in needs.runtime["engine_support"]:
        if support["runtime"] in engine.runtimes or support["cdi"] in engine.cdi:
            return list(support["options"])
    return []


def _nodes(needs: Needs, root: Root, found: list[int]) -> list[str]:
    nodes = [
        node.replace(CARD, str(index))
        for node in needs.runtime["devices"]
        for index in (found if CARD in node else found[:1])
    ]
    nodes += [node for node in needs.runtime["optional_devices"] if root.exists(node)]
    return [f"--device={node}" for node in nodes]


def _mounts(needs: Needs, root: Root) -> list[str]:
    optional = [one for one in needs.runtime["optional_mounts"] if root.exists(one.split(":")[0])]
    return [f"--volume={mount}" for mount in [*needs.runtime["mounts"], *optional]]


def docker_line(needs: Needs, options: list[str], command: str = "train verify --device") -> list[str]:
    """`docker run`, one option a line."""
    words = ["docker run --rm", *(f"  {one}" for one in [*options, f"isotune:{needs.image}"])]
    return [*(f"{word} \\" for word in words), f"  {command}"]


def compose_lines(needs: Needs, options: list[str]) -> list[str]:
    """A service of a compose file that trains."""
    lists: dict[str, list[str]] = {}
    lines = ["services:", "  train:", f"    image: isotune:{needs.image}"]
    for option in options:
        name, _, value = option.removeprefix("--").partition("=")
        if name == "ulimit":
            limit, _, bounds = value.partition("=")
            lines += ["    ulimits:", f"      {limit}: {bounds.partition(':')[0]}"]
        elif name in SINGLE:
            lines.append(f"    {SINGLE[name]}: {value}")
        else:
            lists.setdefault(LISTS[name], []).append(value)
    lists.setdefault("volumes", []).extend(f"{host}:{place}{':ro' * closed}" for host, place, closed in DATA)
    for key, values in lists.items():
        lines += [f"    {key}:", *(f"      - {json.dumps(value)}" for value in values)]
    return [*lines, f"    command: {json.dumps(TRAIN)}"]


def pod_lines(needs: Needs, root: Root, on_host: bool = False) -> list[str]:
    """A pod that trains; the cards are asked of the device plugin by its resource, never mounted as nodes."""
    kubernetes = needs.runtime["kubernetes"]
    groups = _groups(needs, root, on_host)
    lines = ["apiVersion: v1", "kind: Pod", "metadata:", "  name: isotune", "spec:", "  restartPolicy: Never"]
    if groups:
        lines += ["  securityContext:", f"    supplementalGroups: {json.dumps(groups)}"]
    lines += ["  containers:", "    - name: train", f"      image: isotune:{needs.image}"]
    lines.append(f"      args: {json.dumps(TRAIN)}")
    if kubernetes["resource"]:
        count = json.dumps(str(len(cards(needs, root)) or 1))
        lines += ["      resources:", "        limits:", f"          {kubernetes['resource']}: {count}"]
    volumes = _volumes(needs)
    lines += ["      volumeMounts:", *(volume.mount_line() for volume in volumes)]
    return [*lines, "  volumes:", *(f"    - {{name: {one.name}, {one.source}}}" for one in volumes)]


@dataclass(frozen=True)
class _Volume:
    """A volume of a pod. source: in Kubernetes' words."""

    name: str
    place: str
    source: str
    is_closed: bool = False

    def mount_line(self) -> str:
        closed = ", readOnly: true" if self.is_closed else ""
        return f"        - {{name: {self.name}, mountPath: {self.place}{closed}}}"


def _volumes(needs: Needs) -> list[_Volume]:
    size = needs.runtime["shm_size"]
    limit = size[:-1] + {"g": "Gi", "m": "Mi", "k": "Ki"}[size[-1]]
    volumes = [_Volume("shm", "/dev/shm", f"emptyDir: {{medium: Memory, sizeLimit: {limit}}}")]
    brought = needs.runtime["mounts"] if needs.runtime["kubernetes"]["needs_mounts"] else []
    for number, mount in enumerate(brought):
        source, target = ends(mount)
        volumes.append(_Volume(f"driver-{number}", target, f"hostPath: {{path: {source}}}", True))
    for host, place, is_closed in DATA:
        volumes.append(_Volume(place[1:], place, f"hostPath: {{path: {host}}}", is_closed))
    return volumes


def _groups(needs: Needs, root: Root, on_host: bool) -> list[int]:
    """Groups by number: those that own what is there, else those that the backend names and the host has.

    A container's own /etc/group says nothing of the host's numbers.
    """
    named = named_gids(needs, root).values() if on_host else []
    return gids(needs, root) or sorted({*named} - {0})


def unknown_groups(needs: Needs, root: Root, on_host: bool) -> list[str]:
    """In a container that lacks the nodes, their group's number is the host's to tell: its shell does."""
    node = next((node.replace(CARD, "0") for node in needs.runtime["devices"]), "")
    if on_host or not node or not needs.runtime["groups"] or root.exists(node):
        return []
    return [f'--group-add="$(stat -c %g {node})"']
