"""Jobs whose nodes are scheduled together by others: Kubeflow Trainer and Volcano."""

from __future__ import annotations

from typing import Any

from images.launch.container import environment, rendezvous, train_arguments
from images.launch.kubernetes import (
    FAILS_AT_ONCE,
    REPLICATED,
    failure_policy,
    job_spec,
    queued,
    recipe_documents,
)
from images.launch.plan import CONTAINER, Launch
from images.launch.pod import from_annotation, labels, metadata, plain, pod_template, resources

TRAINER = "trainer.kubeflow.org"
# Trainer knows its container by this name, and its job by this label.
TRAINER_CONTAINER = "node"
STEP_LABEL = {f"{TRAINER}/trainjob-ancestor-step": "trainer"}
TASK = "worker"
TASK_INDEX = "volcano.sh/task-index"


def trainjob_documents(launch: Launch) -> list[dict[str, Any]]:
    """Return a TrainJob and its runtime, as Trainer 2.0 to 2.3 take them.

    No overrides: each version names them otherwise. Pod details are the runtime's. Trainer sets the PET_
    variables, and counts cards only if their name has "gpu" in it, so that the number of processes is told.
    """
    name, api = launch.options.name, {"apiVersion": f"{TRAINER}/v1alpha1"}
    runtime = api | {
        "kind": "TrainingRuntime",
        "metadata": metadata(launch, None, **{f"{TRAINER}/framework": "torch"}),
        "spec": {"mlPolicy": {"numNodes": launch.nodes, "torch": {}}, "template": {"spec": _job_set(launch)}},
    }
    trainer = {
        "image": launch.image,
        "args": train_arguments(launch),
        "env": plain(environment(launch)),
        "numNodes": launch.nodes,
        "numProcPerNode": launch.nproc,
        "resourcesPerNode": resources(launch),
    }
    reference = {"apiGroup": TRAINER, "kind": "TrainingRuntime", "name": name}
    job = api | {
        "kind": "TrainJob",
        "metadata": queued(launch),
        "spec": {"runtimeRef": reference, "trainer": trainer},
    }
    return [*recipe_documents(launch), runtime, job]


def _job_set(launch: Launch) -> dict[str, Any]:
    template = pod_template(launch, TRAINER_CONTAINER, [])
    child = job_spec(launch, template, TRAINER_CONTAINER) | {"backoffLimit": 0}
    replicated = {"metadata": {"labels": labels(launch) | STEP_LABEL}, "spec": child}
    # No time to live here: Trainer would make a JobSet that was deleted anew.
    return {
        "failurePolicy": failure_policy(launch),
        "replicatedJobs": [{"name": REPLICATED, "replicas": 1, "template": replicated}],
    }


def volcano_documents(launch: Launch) -> list[dict[str, Any]]:
    """Return a Volcano job whose nodes start together or not at all."""
    options, own = launch.options, launch.spec.runtime.kubernetes
    name = options.name
    variables = plain(rendezvous(launch, f"{name}-{TASK}-0.{name}"))
    variables.append(from_annotation("PET_NODE_RANK", TASK_INDEX))
    if launch.devices and options.annotated_devices and own.cards_variable:
        variables.append(from_annotation(own.cards_variable, str(launch.resource)))
    template = pod_template(launch, CONTAINER, variables)
    template["metadata"]["labels"] |= own.scheduler_labels
    task = {
        "name": TASK,
        "replicas": launch.nodes,
        "policies": [{"event": "TaskCompleted", "action": "CompleteJob"}],
        "template": template,
    }
    spec: dict[str, Any] = {
        "schedulerName": "volcano",
        "minAvailable": launch.nodes,
        "queue": options.queue or "default",
        "maxRetry": options.retries,
        "ttlSecondsAfterFinished": options.ttl_seconds,
        "plugins": {"env": [], "svc": ["--publish-not-ready-addresses=true"]},
        "policies": _policies(),
        "tasks": [task],
    }
    spec |= {"priorityClassName": options.priority} if options.priority else {}
    data = metadata(launch, None, **own.scheduler_labels)
    job = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": data, "spec": spec}
    return [*recipe_documents(launch), *_rank_table(launch), job]


def _policies() -> list[dict[str, Any]]:
    """Return what follows what; the first that fits decides, so exit codes come before events."""
    codes = [{"exitCode": code, "action": "TerminateJob"} for code in FAILS_AT_ONCE]
    return [*codes, *({"event": event, "action": "RestartJob"} for event in ("PodEvicted", "PodFailed"))]


def _rank_table(launch: Launch) -> list[dict[str, Any]]:
    own = launch.spec.runtime.kubernetes
    if not launch.options.rank_table or own.rank_table is None:
        return []
    name = own.rank_table.config_map.format(name=launch.options.name)
    data = metadata(launch, name, **own.scheduler_labels)
    content = {own.rank_table.key: own.rank_table.initial}
    return [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": data, "data": content}]
