"""Rules on one pod, whoever starts it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from images.faults import KeyPath
from images.launch.container import OFFLINE
from images.lint_rendered import floating

Finding = tuple[KeyPath, str, str, str]
SHUTDOWN = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
INPUTS = re.compile(r"^/(?:model|data|eval-data)(?:/|$)")
QUANTITY = re.compile(r"^(\d+)(Ki|Mi|Gi|Ti)?$")
UNITS = {None: 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
HOST = ("hostNetwork", "hostPID", "hostIPC")


def pod_findings(path: KeyPath, template: dict[str, Any]) -> Iterator[Finding]:
    """Yield every finding of the pod template at `path`."""
    spec = template.get("spec") or {}
    own = (*path, "spec")
    yield from _pod(own, spec)
    yield from _volumes(own, spec)
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field) or []):
            yield from _container((*own, field, index), container, spec)


def variables(container: dict[str, Any]) -> dict[str, Any]:
    """Return name -> value of the variables; one that comes from elsewhere has None."""
    return {entry["name"]: entry.get("value") for entry in container.get("env") or []}


def number_of(quantity: Any) -> int | None:
    """Return bytes, or a plain number, of a quantity of Kubernetes."""
    found = QUANTITY.match(str(quantity))
    return int(found[1]) * UNITS[found[2]] if found else None


def _pod(path: KeyPath, spec: dict[str, Any]) -> Iterator[Finding]:
    context = spec.get("securityContext") or {}
    if context.get("runAsNonRoot") is not True or not context.get("runAsUser"):
        cure = "runAsNonRoot: true and a runAsUser above 0"
        yield (*path, "securityContext"), "manifest-safe", "may run as root", cure
    if (context.get("seccompProfile") or {}).get("type") != "RuntimeDefault":
        cure = "seccompProfile: {type: RuntimeDefault}"
        yield (*path, "securityContext"), "manifest-safe", "has no default seccomp profile", cure
    for key in [key for key in HOST if spec.get(key)]:
        yield (*path, key), "manifest-safe", "shares the host's", "leave it out"
    if spec.get("automountServiceAccountToken") is not False:
        what = "gives the job a token of the cluster"
        yield path, "manifest-safe", what, "automountServiceAccountToken: false"
    if spec.get("restartPolicy") != "Never":
        what = f"{spec.get('restartPolicy')}: exit codes would not be looked at"
        yield (*path, "restartPolicy"), "manifest-exit", what, "restartPolicy: Never"
    limits = [variables(container).get(SHUTDOWN) for container in spec.get("containers") or []]
    grace = spec.get("terminationGracePeriodSeconds") or 0
    for limit in limits:
        if not str(limit).isdigit() or int(str(limit)) >= grace:
            what = f"{grace} s, while workers may take {limit} s ({SHUTDOWN})"
            yield (*path, "terminationGracePeriodSeconds"), "manifest-stop", what, "more than that"


def _volumes(path: KeyPath, spec: dict[str, Any]) -> Iterator[Finding]:
    volumes = spec.get("volumes") or []
    used: set[str] = set()
    for field in ("initContainers", "containers"):
        for container in spec.get(field) or []:
            used |= {mount["name"] for mount in container.get("volumeMounts") or []}
    for index, volume in enumerate(volumes):
        place = (*path, "volumes", index)
        if volume["name"] not in used:
            yield (
                place,
                "manifest-volumes",
                f"{volume['name']} is mounted nowhere",
                "mount it, or take it out",
            )
        if "hostPath" in volume:
            cure = "ask the device plugin for what the host has"
            yield place, "manifest-safe", "is a path of the host", cure
        empty = volume.get("emptyDir") or {}
        if empty.get("medium", "") not in ("", "Memory"):
            what = f"medium {empty['medium']} is unknown, and would be a disk"
            yield (*place, "emptyDir"), "manifest-room", what, "medium: Memory"
        if empty.get("medium") == "Memory" and not number_of(empty.get("sizeLimit")):
            yield (*place, "emptyDir"), "manifest-room", "memory without a limit", "add sizeLimit"


def _container(path: KeyPath, container: dict[str, Any], spec: dict[str, Any]) -> Iterator[Finding]:
    context = container.get("securityContext") or {}
    capabilities = context.get("capabilities") or {}
    wanted = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True}
    for key in [key for key, value in wanted.items() if context.get(key) is not value]:
        cure = f"{key}: {str(wanted[key]).lower()}"
        yield (*path, "securityContext"), "manifest-safe", f"{key} is {context.get(key)}", cure
    if context.get("privileged") or capabilities.get("drop") != ["ALL"] or capabilities.get("add"):
        cure = "privileged: false and capabilities: {drop: [ALL]}"
        yield (*path, "securityContext"), "manifest-safe", "has privileges", cure
    image = str(container.get("image", ""))
    if floating(image):
        yield (*path, "image"), "manifest-image", f"{image!r} moves", "name a version's tag or a digest"
    if "command" in container:
        what = "takes the place of the entrypoint, which sets the vendor's environment"
        yield (*path, "command"), "manifest-exit", what, "args: [train, ...]"
    lacking = [name for name in OFFLINE if variables(container).get(name) != OFFLINE[name]]
    if lacking:
        yield (*path, "env"), "manifest-offline", f"lacks {', '.join(lacking)}", "set them to 1"
    yield from _resources(path, container, spec)
    yield from _mounts(path, container, spec)


def _resources(path: KeyPath, container: dict[str, Any], spec: dict[str, Any]) -> Iterator[Finding]:
    found = container.get("resources") or {}
    requests, limits = found.get("requests") or {}, found.get("limits") or {}
    if requests != limits or not {"cpu", "memory"} <= set(limits):
        cure = "the same cpu, memory and cards in both"
        yield (*path, "resources"), "manifest-cards", "requests are not the limits", cure
    for side, amounts in (("requests", requests), ("limits", limits)):
        for name, amount in amounts.items():
            if "/" in name and not (isinstance(amount, str) and re.match(r"^[1-9]\d*$", amount)):
                what = f"{amount!r} is no whole number in quotes"
                yield (*path, "resources", side, name), "manifest-cards", what, "write '8'"
    memory = number_of(limits.get("memory"))
    shared = _shared_memory(container, spec)
    if memory is not None and shared >= memory:
        what = f"{limits['memory']} does not hold /dev/shm, which is part of it"
        yield (*path, "resources", "limits", "memory"), "manifest-room", what, "more memory, or less shm"


def _shared_memory(container: dict[str, Any], spec: dict[str, Any]) -> int:
    mounted = {mount["name"] for mount in container.get("volumeMounts") or []}
    sizes = [
        number_of(volume["emptyDir"].get("sizeLimit")) or 0
        for volume in spec.get("volumes") or []
        if volume["name"] in mounted and (volume.get("emptyDir") or {}).get("medium") == "Memory"
    ]
    return sum(sizes)


def _mounts(path: KeyPath, container: dict[str, Any], spec: dict[str, Any]) -> Iterator[Finding]:
    volumes = {volume["name"] for volume in spec.get("volumes") or []}
    targets = {mount["mountPath"]: mount for mount in container.get("volumeMounts") or []}
    for index, mount in enumerate(container.get("volumeMounts") or []):
        place = (*path, "volumeMounts", index)
        if mount["name"] not in volumes:
            cure = f"there are {', '.join(sorted(volumes))}"
            yield place, "manifest-volumes", f"there is no volume {mount['name']}", cure
        if INPUTS.match(mount["mountPath"]) and mount.get("readOnly") is not True:
            yield place, "manifest-volumes", f"{mount['mountPath']} can be written", "readOnly: true"
    for target in [target for target in ("/dev/shm", "/tmp") if target not in targets]:
        yield (*path, "volumeMounts"), "manifest-room", f"{target} is not mounted", "an emptyDir"
