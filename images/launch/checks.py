"""What options say together, and with the backend and the shape: contradictions, and words without effect."""

from __future__ import annotations

from collections.abc import Iterator

from images.launch.container import OWN_FIELDS, RESERVED
from images.launch.kubernetes import QUEUE_LABEL
from images.launch.options import PLACES
from images.launch.plan import Launch
from images.launch.pod import BASE_LABELS
from images.launch.sizes import size_bytes


def cross_faults(launch: Launch, given: set[str]) -> list[str]:
    """Return every fault; `given` are the names of the options that were given."""
    rules = (_without_place, _nodes, _cards, _hosts, _memory, _variables, _optional, _backend)
    return [fault for rule in rules for fault in rule(launch, given)]


def _without_place(launch: Launch, given: set[str]) -> Iterator[str]:
    for name in sorted(given & set(PLACES)):
        if launch.shape not in PLACES[name]:
            where = ", ".join(PLACES[name])
            yield f"--{name.replace('_', '-')}: has no effect with --as {launch.shape}; it is for {where}"


def _nodes(launch: Launch, given: set[str]) -> Iterator[str]:
    if launch.nodes > 1 and launch.shape == "job":
        yield f"--nodes {launch.nodes}: a job is one pod; use --as indexed-job, jobset, trainjob or volcano"
    if launch.options.master_addr and launch.nodes == 1:
        yield f"--master-addr {launch.options.master_addr}: there is one node; add --nodes N"
    if launch.options.network == "none" and launch.nodes > 1:
        yield "--network none: nodes could not talk; leave it out"


def _cards(launch: Launch, given: set[str]) -> Iterator[str]:
    options, spec = launch.options, launch.spec
    cards = [name for name in ("devices", "device_ids", "resource") if getattr(options, name)]
    if not launch.has_devices:
        for name in cards:
            yield f"--{name.replace('_', '-')}: {spec.image} has no cards; --nproc N gives it N processes"
        return
    if options.nproc and launch.devices and options.nproc > launch.devices:
        yield (
            f"--nproc {options.nproc}: more processes than the {launch.devices} cards of a node;"
            f" --devices {options.nproc}, or fewer processes"
        )
    if launch.shape != "compose" and launch.devices and not launch.resource:
        yield f"--resource: {spec.image} has no default; name the resource of the cluster's plugin"
    here = 1 if options.master_addr else launch.nodes
    ids = options.device_ids
    if ids and "devices" in given and len(ids) != launch.devices * here:
        yield f"--device-ids: {len(ids)} cards for {launch.devices * here} (--devices); name each one once"
    elif ids and "devices" not in given and here > 1:
        yield "--device-ids: several nodes on this host share these; add --devices N"
    if len(set(ids)) != len(ids) or any(number < 0 for number in ids):
        yield f"--device-ids {','.join(map(str, ids))}: a card is a number from 0 on, and named once"


def _hosts(launch: Launch, given: set[str]) -> Iterator[str]:
    rank, address = launch.options.node_rank, launch.options.master_addr
    if rank is not None and not address:
        yield f"--node-rank {rank}: needs --master-addr, the host of node 0"
    if address and rank is None:
        yield f"--master-addr {address}: needs --node-rank, the number of this host"
    if rank is not None and rank >= launch.nodes:
        yield f"--node-rank {rank}: there are {launch.nodes} nodes, counted from 0"


def _memory(launch: Launch, given: set[str]) -> Iterator[str]:
    if "memory" in given and size_bytes(launch.memory) <= size_bytes(launch.shm):
        yield (
            f"--memory {launch.memory}: /dev/shm ({launch.shm}) is part of it;"
            " more memory, or a smaller --shm"
        )


def _variables(launch: Launch, given: set[str]) -> Iterator[str]:
    for name in launch.options.env:
        if name in RESERVED or name.startswith("PET_"):
            yield f"--env {name}: is set by the job itself; leave it out"
    own = {*BASE_LABELS, QUEUE_LABEL, *launch.spec.runtime.kubernetes.scheduler_labels}
    for name in sorted(own & set(launch.options.labels)):
        yield f"--labels {name}: is set by the job itself; leave it out"
    for name in launch.options.train:
        if name in OWN_FIELDS:
            yield f"--train {name}: has an option of its own; use {OWN_FIELDS[name]}"
    if launch.options.interface and not launch.spec.runtime.interface_variables:
        yield f"--interface: {launch.spec.image} names no variable for it; use --env"
    for name in sorted({*launch.spec.runtime.interface_variables} & set(launch.options.env)):
        if launch.options.interface:
            yield f"--env {name}: --interface sets it too; give one of them"


def _optional(launch: Launch, given: set[str]) -> Iterator[str]:
    runtime = launch.spec.runtime
    listed = [*runtime.optional_devices, *(mount.partition(":")[0] for mount in runtime.optional_mounts)]
    words = launch.options.optional
    if words in (["devices"], ["none"]):
        return
    for word in words:
        if word not in listed:
            known = ", ".join(listed) or "nothing"
            yield f"--optional {word}: is not in the spec of {launch.spec.image}; there: {known}"


def _backend(launch: Launch, given: set[str]) -> Iterator[str]:
    extras, spec = launch.extras, launch.spec
    if extras.unknown:
        yield f"{spec.image}: runtime.docker_options: no word for {', '.join(extras.unknown)} in a manifest"
    if launch.options.exceptions and not extras.exceptions:
        yield f"--exceptions: the spec of {spec.image} has none; leave it out"
    if launch.options.driver_mounts and not spec.runtime.kubernetes.needs_mounts:
        yield f"--driver-mounts: what {spec.image} needs of the host its plugin brings in; leave it out"
    if launch.options.rank_table and not spec.runtime.kubernetes.rank_table:
        yield f"--rank-table: the spec of {spec.image} has none; leave it out"
