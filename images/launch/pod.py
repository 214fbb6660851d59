"""The pod that every Kubernetes shape starts: its container, volumes and what it may not do."""

from __future__ import annotations

from typing import Any

from images.launch.container import RECIPE_TARGET, environment, train_arguments, verify_arguments
from images.launch.options import TOLERATION
from images.launch.plan import Launch
from images.launch.sizes import quantity

NAME_LABEL, JOB_LABEL = "app.kubernetes.io/name", "app.kubernetes.io/instance"
BASE_LABELS = (NAME_LABEL, JOB_LABEL)


def metadata(launch: Launch, name: str | None = None, **more: str) -> dict[str, Any]:
    """Return the metadata of an object: name, namespace, labels and annotations."""
    options = launch.options
    data: dict[str, Any] = {"name": name or options.name}
    data |= {"namespace": options.namespace} if options.namespace else {}
    data["labels"] = labels(launch) | more
    data |= {"annotations": dict(options.annotations)} if options.annotations else {}
    return data


def labels(launch: Launch) -> dict[str, str]:
    return {NAME_LABEL: "isotune", JOB_LABEL: launch.options.name} | launch.options.labels


def pod_template(launch: Launch, name: str, variables: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return the template: `name` is the container's, `variables` are those of its place among the nodes."""
    options = launch.options
    data: dict[str, Any] = {"labels": labels(launch)}
    data |= {"annotations": dict(options.annotations)} if options.annotations else {}
    container = {
        "name": name,
        **_container(launch, train_arguments(launch), [*_variables(environment(launch)), *variables]),
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": options.grace,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _pod_security(launch),
        **_scheduling(launch),
    }
    if options.verify:
        own = _variables(environment(launch))
        spec["initContainers"] = [{"name": "verify", **_container(launch, verify_arguments(), own)}]
    spec |= {"containers": [container], "volumes": _volumes(launch)}
    return {"metadata": data, "spec": spec | more}


def resources(launch: Launch) -> dict[str, Any]:
    """Return requests and limits, which are equal: cards cannot be promised twice, nor should memory."""
    amounts = {"cpu": str(launch.cpus), "memory": quantity(launch.memory)}
    amounts |= {str(launch.resource): str(launch.devices)} if launch.devices else {}
    return {"requests": amounts, "limits": dict(amounts)}


def _variables(values: dict[str, str]) -> list[dict[str, Any]]:
    # `$(NAME)` would be replaced by Kubernetes; doubled, it is text.
    return [{"name": name, "value": value.replace("$(", "$$(")} for name, value in values.items()]


def from_annotation(name: str, annotation: str) -> dict[str, Any]:
    """Return a variable whose value an annotation of the pod tells."""
    path = f"metadata.annotations['{annotation}']"
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def plain(values: dict[str, str]) -> list[dict[str, Any]]:
    """Return variables with fixed values."""
    return _variables(values)


def _container(launch: Launch, arguments: list[str], variables: list[dict[str, Any]]) -> dict[str, Any]:
    # Arguments only: a `command` would take the place of the entrypoint, which sets the vendor's environment.
    return {
        "image": launch.image,
        "imagePullPolicy": "IfNotPresent",
        "args": [word.replace("$(", "$$(") for word in arguments],
        "env": variables,
        "resources": resources(launch),
        "securityContext": _container_security(launch),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": _mounts(launch),
    }


def _pod_security(launch: Launch) -> dict[str, Any]:
    options = launch.options
    unconfined = options.exceptions and launch.extras.seccomp_off
    context: dict[str, Any] = {
        "runAsNonRoot": True,
        "runAsUser": options.uid,
        "runAsGroup": options.gid,
        "fsGroup": options.gid,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "Unconfined" if unconfined else "RuntimeDefault"},
    }
    return context | ({"supplementalGroups": list(options.groups)} if options.groups else {})


def _container_security(launch: Launch) -> dict[str, Any]:
    capabilities: dict[str, Any] = {"drop": ["ALL"]}
    if launch.options.exceptions and launch.extras.capabilities:
        capabilities["add"] = launch.extras.capabilities
    return {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "capabilities": capabilities,
    }


def _scheduling(launch: Launch) -> dict[str, Any]:
    options = launch.options
    found: dict[str, Any] = {}
    found |= {"runtimeClassName": options.runtime} if options.runtime else {}
    found |= {"priorityClassName": options.priority} if options.priority else {}
    found |= {"nodeSelector": dict(options.node_selector)} if options.node_selector else {}
    found |= (
        {"tolerations": [_toleration(text) for text in options.tolerations]} if options.tolerations else {}
    )
    if options.spread and launch.nodes > 1:
        term = {
            "labelSelector": {"matchLabels": {JOB_LABEL: options.name}},
            "topologyKey": "kubernetes.io/hostname",
        }
        anti = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
        found["affinity"] = {"podAntiAffinity": anti}
    return found


def _toleration(text: str) -> dict[str, str]:
    found = TOLERATION.match(text)
    assert found
    taint = {"key": found["key"], "operator": "Exists" if found["value"] is None else "Equal"}
    taint |= {"value": found["value"]} if found["value"] is not None else {}
    return taint | ({"effect": found["effect"]} if found["effect"] else {})


def _claims(launch: Launch) -> dict[str, str]:
    """Return claim -> name of its volume: one volume per claim, named after what it holds first."""
    names: dict[str, str] = {}
    for found in launch.places.values():
        names.setdefault(str(found.claim), found.role.replace("_", "-"))
    return names


def _volumes(launch: Launch) -> list[dict[str, Any]]:
    volumes: list[dict[str, Any]] = []
    for claim, name in _claims(launch).items():
        read_only = all(found.read_only for found in launch.places.values() if found.claim == claim)
        source = {"claimName": claim} | ({"readOnly": True} if read_only else {})
        volumes.append({"name": name, "persistentVolumeClaim": source})
    if launch.recipe_file:
        volumes.append({"name": "recipe", "configMap": {"name": recipe_map(launch)}})
    memory = {"medium": "Memory", "sizeLimit": quantity(launch.shm)}
    volumes.append({"name": "shm", "emptyDir": memory})
    volumes.append({"name": "tmp", "emptyDir": {"sizeLimit": quantity(launch.options.scratch)}})
    if launch.options.rank_table and (table := launch.spec.runtime.kubernetes.rank_table):
        name = table.config_map.format(name=launch.options.name)
        volumes.append({"name": "rank-table", "configMap": {"name": name}})
    return volumes + [
        {"name": name, "hostPath": {"path": source}} for name, source, _ in _driver_mounts(launch)
    ]


def _driver_mounts(launch: Launch) -> list[tuple[str, str, str]]:
    """Return (volume, path of the host, path inside) of the driver's files, where they were asked for."""
    mounts = launch.spec.runtime.mounts if launch.options.driver_mounts else []
    parts = [mount.split(":") for mount in mounts]
    return [(f"driver-{number}", source, target) for number, (source, target, *_) in enumerate(parts)]


def _mounts(launch: Launch) -> list[dict[str, Any]]:
    names = _claims(launch)
    mounts: list[dict[str, Any]] = []
    for found in launch.places.values():
        mount: dict[str, Any] = {"name": names[str(found.claim)], "mountPath": found.target}
        mount |= {"subPath": found.path} if found.path else {}
        mounts.append(mount | ({"readOnly": True} if found.read_only else {}))
    if launch.recipe_file:
        folder = RECIPE_TARGET.rpartition("/")[0]
        mounts.append({"name": "recipe", "mountPath": folder, "readOnly": True})
    mounts.append({"name": "shm", "mountPath": "/dev/shm"})
    mounts.append({"name": "tmp", "mountPath": "/tmp"})
    if launch.options.rank_table and (table := launch.spec.runtime.kubernetes.rank_table):
        mounts.append({"name": "rank-table", "mountPath": table.mount, "readOnly": True})
    driver = _driver_mounts(launch)
    return mounts + [{"name": name, "mountPath": target, "readOnly": True} for name, _, target in driver]


def recipe_map(launch: Launch) -> str:
    """Return the name of the ConfigMap that holds the recipe."""
    return f"{launch.options.name}-recipe"
