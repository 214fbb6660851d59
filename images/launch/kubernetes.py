"""Jobs of Kubernetes itself, and JobSet: what each exit code of `train` means to them."""

from __future__ import annotations

from typing import Any

from images.launch.container import rendezvous
from images.launch.plan import CONTAINER, Launch
from images.launch.pod import (
    from_annotation,
    labels,
    metadata,
    plain,
    pod_template,
    recipe_map,
)

# The exit codes of `train`: wrong use, data or recipe is as wrong the second time.
FAILS_AT_ONCE = [64, 65, 78]
SAVED_AND_STOPPED = 75
# Reasons of a failed Job after which its JobSet fails too; it would start all others again.
FINAL = ["PodFailurePolicy", "DeadlineExceeded"]
INDEX = "batch.kubernetes.io/job-completion-index"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
REPLICATED = "node"


def job_documents(launch: Launch) -> list[dict[str, Any]]:
    """Return a Job of one pod."""
    spec = job_spec(launch, pod_template(launch, CONTAINER, []))
    spec |= {"ttlSecondsAfterFinished": launch.options.ttl_seconds, "backoffLimit": launch.options.retries}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": queued(launch), "spec": spec}
    return [*recipe_documents(launch), job]


def indexed_documents(launch: Launch) -> list[dict[str, Any]]:
    """Return an Indexed Job, a pod per node, and the headless Service by which they find node 0."""
    name = launch.options.name
    template = pod_template(launch, CONTAINER, node_variables(launch, f"{name}-0.{name}"), subdomain=name)
    spec = job_spec(launch, template) | _indexed(launch)
    # One incident ends every pod of the job: each of them counts.
    spec["backoffLimit"] = launch.options.retries * launch.nodes
    spec["ttlSecondsAfterFinished"] = launch.options.ttl_seconds
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": queued(launch), "spec": spec}
    return [*recipe_documents(launch), _service(launch), job]


def jobset_documents(launch: Launch) -> list[dict[str, Any]]:
    """Return a JobSet: after an incident all its pods start again together."""
    name = launch.options.name
    template = pod_template(launch, CONTAINER, node_variables(launch, f"{name}-{REPLICATED}-0-0.{name}"))
    child = job_spec(launch, template) | _indexed(launch) | {"backoffLimit": 0}
    spec = {
        "failurePolicy": failure_policy(launch),
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "ttlSecondsAfterFinished": launch.options.ttl_seconds,
        "replicatedJobs": [
            {
                "name": REPLICATED,
                "replicas": 1,
                "template": {"metadata": {"labels": labels(launch)}, "spec": child},
            }
        ],
    }
    jobset = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
    return [*recipe_documents(launch), jobset | {"metadata": queued(launch), "spec": spec}]


def node_variables(launch: Launch, address: str) -> list[dict[str, Any]]:
    """Return the variables by which the pods of an Indexed Job meet."""
    return [*plain(rendezvous(launch, address)), from_annotation("PET_NODE_RANK", INDEX)]


def job_spec(launch: Launch, template: dict[str, Any], container: str = CONTAINER) -> dict[str, Any]:
    """Return what every Job has, whoever owns it."""
    return {
        "activeDeadlineSeconds": launch.options.deadline_seconds,
        # A pod that is not gone yet may still write: its successor waits.
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                # The first rule that fits decides: a disrupted pod may end with any code.
                {
                    "action": "Ignore",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                },
                _on_exit("Ignore", [SAVED_AND_STOPPED], container),
                _on_exit("FailJob", FAILS_AT_ONCE, container),
            ]
        },
        "template": template,
    }


def failure_policy(launch: Launch) -> dict[str, Any]:
    """Return a JobSet's policy: a job that its exit code or its deadline failed is not tried again."""
    rule = {"name": "final", "action": "FailJobSet", "onJobFailureReasons": FINAL}
    return {
        "maxRestarts": launch.options.retries,
        "restartStrategy": "BlockingRecreate",
        "rules": [rule],
    }


def recipe_documents(launch: Launch) -> list[dict[str, Any]]:
    """Return the ConfigMap that brings a recipe of the user's own, if there is one."""
    if not launch.recipe_file:
        return []
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(launch, recipe_map(launch))}
    return [config | {"data": {"recipe.yaml": launch.recipe_text}}]


def queued(launch: Launch, **more: str) -> dict[str, Any]:
    """Return the metadata of what Kueue may admit."""
    queue = {QUEUE_LABEL: launch.options.queue} if launch.options.queue else {}
    return metadata(launch, None, **queue, **more)


def _on_exit(action: str, codes: list[int], container: str) -> dict[str, Any]:
    return {
        "action": action,
        "onExitCodes": {"containerName": container, "operator": "In", "values": codes},
    }


def _indexed(launch: Launch) -> dict[str, Any]:
    return {
        "completionMode": "Indexed",
        "completions": launch.nodes,
        "parallelism": launch.nodes,
    }


def _service(launch: Launch) -> dict[str, Any]:
    spec = {
        "clusterIP": "None",
        # Node 0 is looked for before it is ready.
        "publishNotReadyAddresses": True,
        "selector": {"batch.kubernetes.io/job-name": launch.options.name},
        "ports": [{"name": "nodes", "port": launch.options.master_port, "protocol": "TCP"}],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": metadata(launch), "spec": spec}
