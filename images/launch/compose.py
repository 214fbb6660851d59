"""A Compose file: one service, or one per node on a network of their own."""

from __future__ import annotations

from typing import Any

from images.launch.container import (
    RECIPE_TARGET,
    environment,
    rendezvous,
    several,
    train_arguments,
    verify_arguments,
)
from images.launch.plan import Launch

NETWORK = "nodes"
PIDS = 4096


def compose_documents(launch: Launch) -> list[dict[str, Any]]:
    """Return the file: its only document. `$` is doubled, for Compose would put variables in its place."""
    options = launch.options
    here = options.master_addr is not None  # one node of several hosts: this one
    ranks = [options.node_rank or 0] if here or not several(launch) else list(range(launch.nodes))
    services = {_service_name(launch, rank): _service(launch, rank) for rank in ranks}
    if options.verify:
        services = {"verify": _verify(launch, next(iter(services.values())))} | services
    document: dict[str, Any] = {"name": options.name, "services": services}
    if launch.nodes > 1 and not here:
        document["networks"] = {NETWORK: {"internal": True}}
    return [_escaped(document)]


def _service_name(launch: Launch, rank: int) -> str:
    return f"node-{rank}" if launch.nodes > 1 else "train"


def _service(launch: Launch, rank: int) -> dict[str, Any]:
    options = launch.options
    variables = environment(launch)
    if launch.nodes > 1:
        address = options.master_addr or _service_name(launch, 0)
        variables |= rendezvous(launch, address) | {"PET_NODE_RANK": str(rank)}
    cards = _cards(launch, rank)
    # Without nodes by number every card is there, and the variable chooses.
    if cards and not launch.extras.gpus and not _by_index(launch):
        variables[str(launch.spec.runtime.visible_devices_variable)] = ",".join(map(str, cards))
    service = _secured(launch)
    service["command"] = train_arguments(launch)
    service["environment"] = variables
    service |= _network(launch)
    service["volumes"] = _volumes(launch)
    service |= _device_access(launch, cards)
    service["stop_grace_period"] = f"{options.grace}s"
    service["restart"] = "no"
    if options.verify:
        service["depends_on"] = {"verify": {"condition": "service_completed_successfully"}}
    return service


def _secured(launch: Launch) -> dict[str, Any]:
    """Return what holds for every container: who it is, and what it may not."""
    options, extras = launch.options, launch.extras
    service: dict[str, Any] = {
        "image": launch.image,
        "user": f"{options.uid}:{options.gid}",
        "read_only": True,
        "init": True,  # reaps what workers leave, and passes signals on
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "pids_limit": PIDS,
        "tmpfs": [f"/tmp:mode=1777,size={options.scratch_bytes}"],
        "shm_size": launch.shm,
    }
    service |= {"mem_limit": options.memory} if options.memory else {}
    service |= {"cpus": options.cpus} if options.cpus else {}
    service |= {"runtime": options.runtime} if options.runtime else {}
    service |= {"group_add": [str(group) for group in options.groups]} if options.groups else {}
    if options.exceptions:
        service["security_opt"] += extras.security
        service |= {"cap_add": extras.capabilities} if extras.capabilities else {}
        limits = {name: {"soft": soft, "hard": hard} for name, (soft, hard) in extras.ulimits.items()}
        service |= {"ulimits": limits} if limits else {}
    return service


def _network(launch: Launch) -> dict[str, Any]:
    options = launch.options
    if options.network or options.master_addr or launch.nodes == 1:
        # Several hosts meet over the hosts' own network.
        return {"network_mode": options.network or ("host" if options.master_addr else "none")}
    return {"networks": [NETWORK]}


def _volumes(launch: Launch) -> list[dict[str, Any]]:
    binds = [(place.path, place.target, place.read_only) for place in launch.places.values()]
    if launch.recipe_file:
        binds.append((str(launch.recipe_file), RECIPE_TARGET, True))
    for mount in (*launch.spec.runtime.mounts, *_optional(launch, launch.spec.runtime.optional_mounts)):
        source, _, rest = mount.partition(":")
        target, _, mode = rest.partition(":")
        binds.append((source, target or source, mode == "ro"))
    return [_bind(*bind) for bind in binds]


def _bind(source: str, target: str, read_only: bool) -> dict[str, Any]:
    # A path that is not there is an error, not a new folder that belongs to root.
    bind = {"create_host_path": False}
    return {"type": "bind", "source": source, "target": target, "read_only": read_only, "bind": bind}


def _by_index(launch: Launch) -> bool:
    return any("{index}" in path for path in launch.spec.runtime.devices)


def _cards(launch: Launch, rank: int) -> list[int]:
    """Return the numbers of a node's cards on this host."""
    here = launch.options.master_addr is not None
    first = 0 if here else rank * launch.devices
    given = launch.options.device_ids
    return given[first : first + launch.devices] or list(range(first, first + launch.devices))


def _device_access(launch: Launch, cards: list[int]) -> dict[str, Any]:
    if not cards:
        return {}
    if launch.extras.gpus:
        request = {"capabilities": ["gpu"], "device_ids": [str(card) for card in cards]}
        return {"deploy": {"resources": {"reservations": {"devices": [request]}}}}
    runtime = launch.spec.runtime
    paths = [*runtime.devices, *_optional(launch, runtime.optional_devices)]
    named = [path.format(index=card) for path in paths for card in (cards if "{index}" in path else [0])]
    return {"devices": [f"{path}:{path}" for path in named]}


def _optional(launch: Launch, listed: list[str]) -> list[str]:
    """Return which optional nodes or mounts go along: the nodes, unless paths are given."""
    chosen = launch.options.optional
    if chosen == ["devices"]:
        return listed if listed == launch.spec.runtime.optional_devices else []
    return [entry for entry in listed if entry.partition(":")[0] in chosen]


def _verify(launch: Launch, service: dict[str, Any]) -> dict[str, Any]:
    """Return the service that runs before: the same container without model and data, alone."""
    mounts = {place.target for place in launch.places.values()} | {RECIPE_TARGET}
    volumes = [volume for volume in service["volumes"] if volume["target"] not in mounts]
    without = ("depends_on", "networks", "volumes")
    kept = {key: value for key, value in service.items() if key not in without}
    names = [name for name in service["environment"] if not name.startswith("PET_")]
    variables = {name: service["environment"][name] for name in names}
    changed: dict[str, Any] = {"command": verify_arguments(), "environment": variables}
    changed |= {"volumes": volumes} if volumes else {}
    return kept | changed | {"network_mode": "none"}


def _escaped(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _escaped(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return value.replace("$", "$$") if isinstance(value, str) else value
