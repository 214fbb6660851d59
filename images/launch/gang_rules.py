"""Rules on what Kubeflow Trainer and Volcano start."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from images.faults import KeyPath
from images.launch.gang import STEP_LABEL, TASK_INDEX, TRAINER_CONTAINER
from images.launch.job_rules import final_findings, name_findings, rank_findings, replicated, spec_findings
from images.launch.kubernetes import FAILS_AT_ONCE
from images.launch.pod_rules import Finding, variables

# Of Volcano's batch/v1alpha1.
ACTIONS = {"AbortJob", "RestartJob", "RestartTask", "RestartPod", "TerminateJob", "CompleteJob", "ResumeJob"}
EVENTS = {
    "PodFailed",
    "PodEvicted",
    "PodPending",
    "PodRunning",
    "TaskCompleted",
    "TaskFailed",
    "Unknown",
    "*",
}
EVENTS |= {"OutOfSync", "CommandIssued", "JobUpdated"}
SPEC_KEYS = {"schedulerName", "minAvailable", "volumes", "tasks", "policies", "plugins", "runningEstimate"}
SPEC_KEYS |= {"queue", "maxRetry", "ttlSecondsAfterFinished", "priorityClassName", "minSuccess"}
TASK_KEYS = {"name", "replicas", "minAvailable", "template", "policies", "maxRetry", "dependsOn"}


def gang_findings(kind: str, document: dict[str, Any], others: list[Any]) -> Iterator[Finding]:
    """Yield every finding of a TrainJob, its runtime or a Volcano job."""
    if kind == "TrainingRuntime":
        yield from _runtime(document)
    elif kind == "TrainJob":
        yield from name_findings(document)
        yield from _train_job(document, others)
    elif kind == "Job.batch.volcano.sh":
        yield from name_findings(document)
        yield from _volcano(document)


def _runtime(document: dict[str, Any]) -> Iterator[Finding]:
    template = (document.get("spec") or {}).get("template") or {}
    yield from final_findings(("spec", "template", "spec"), template.get("spec") or {})
    for path, spec, _ in replicated(("spec", "template"), template):
        yield from spec_findings(path, spec)
        containers = ((spec.get("template") or {}).get("spec") or {}).get("containers") or []
        if TRAINER_CONTAINER not in {container["name"] for container in containers}:
            what = "Trainer knows its container by the name node"
            yield (*path, "template"), "manifest-names", what, "name: node"
        entry = template["spec"]["replicatedJobs"][path[4]]
        found = ((entry.get("template") or {}).get("metadata") or {}).get("labels") or {}
        if not STEP_LABEL.items() <= found.items():
            what = "Trainer knows its job by a label"
            yield path[:-1], "manifest-names", what, f"labels: {STEP_LABEL}"
        if "ttlSecondsAfterFinished" in (template.get("spec") or {}):
            what = "Trainer would make the deleted JobSet anew"
            yield ("spec", "template", "spec"), "manifest-stop", what, "leave ttlSecondsAfterFinished out"


def _train_job(document: dict[str, Any], others: list[Any]) -> Iterator[Finding]:
    spec = document.get("spec") or {}
    trainer, reference = spec.get("trainer") or {}, spec.get("runtimeRef") or {}
    place: KeyPath = ("spec", "trainer")
    if not isinstance(trainer.get("numProcPerNode"), int) or trainer["numProcPerNode"] < 1:
        what = f"numProcPerNode is {trainer.get('numProcPerNode')!r}: Trainer counts CPUs instead of cards"
        yield place, "manifest-ranks", what, "a whole number"
    for name in [name for name in variables(trainer) if name.startswith("PET_")]:
        yield (*place, "env"), "manifest-ranks", f"{name} is set: Trainer refuses the job", "leave it out"
    if "command" in trainer:
        what = "takes the place of the entrypoint, which sets the vendor's environment"
        yield (*place, "command"), "manifest-exit", what, "args: [train, ...]"
    runtimes = {(other.get("kind"), (other.get("metadata") or {}).get("name")): other for other in others}
    runtime = runtimes.get((reference.get("kind"), reference.get("name")))
    if runtime is None:
        yield ("spec", "runtimeRef"), "manifest-names", "its runtime is not in this file", "name that one"
    elif (runtime["spec"].get("mlPolicy") or {}).get("numNodes") != trainer.get("numNodes"):
        what = f"{trainer.get('numNodes')} nodes, its runtime has others"
        yield (*place, "numNodes"), "manifest-ranks", what, "one number of nodes"


def _volcano(document: dict[str, Any]) -> Iterator[Finding]:
    spec = document.get("spec") or {}
    name, tasks = document["metadata"].get("name"), spec.get("tasks") or []
    total = sum(task.get("replicas", 0) for task in tasks)
    yield from _unknown_keys(("spec",), spec, SPEC_KEYS)
    for index, task in enumerate(tasks):
        yield from _unknown_keys(("spec", "tasks", index), task, TASK_KEYS)
    if spec.get("minAvailable") != total:
        what = f"{spec.get('minAvailable')} of {total} pods: some would wait for the others for ever"
        yield ("spec", "minAvailable"), "manifest-ranks", what, f"minAvailable: {total}"
    for plugin in [plugin for plugin in ("svc", "env") if plugin not in (spec.get("plugins") or {})]:
        yield ("spec", "plugins"), "manifest-ranks", f"lacks {plugin}: pods do not find each other", plugin
    policies = spec.get("policies") or []
    yield from _policies(("spec", "policies"), policies)
    at_once = [policy.get("exitCode") for policy in policies if policy.get("action") == "TerminateJob"]
    first_event = next((i for i, policy in enumerate(policies) if "event" in policy), len(policies))
    if at_once != FAILS_AT_ONCE or first_event < len(at_once):
        what = f"exit codes {at_once} end the job, after {first_event} policies"
        yield ("spec", "policies"), "manifest-exit", what, f"first {FAILS_AT_ONCE}, then events"
    for index, task in enumerate(tasks):
        place: KeyPath = ("spec", "tasks", index)
        yield from _policies((*place, "policies"), task.get("policies") or [])
        containers = task["template"]["spec"].get("containers") or []
        for number, container in enumerate(containers):
            env = (*place, "template", "spec", "containers", number, "env")
            yield from rank_findings(
                env, container, (task.get("replicas"),), f"{name}-{task['name']}-0.{name}"
            )
            if not any(TASK_INDEX in str(entry.get("valueFrom")) for entry in container.get("env") or []):
                yield env, "manifest-ranks", "PET_NODE_RANK is read from nothing", f"annotation {TASK_INDEX}"


def _unknown_keys(path: KeyPath, part: dict[str, Any], known: set[str]) -> Iterator[Finding]:
    for key in [key for key in part if key not in known]:
        close = difflib.get_close_matches(key, known, n=1)
        yield (
            (*path, key),
            "manifest-names",
            "is no field of a Volcano job",
            close[0] if close else "remove it",
        )


def _policies(path: KeyPath, policies: list[dict[str, Any]]) -> Iterator[Finding]:
    for index, policy in enumerate(policies):
        if policy.get("action") not in ACTIONS:
            what = f"{policy.get('action')} is no action of Volcano"
            yield (*path, index), "manifest-exit", what, f"one of {', '.join(sorted(ACTIONS))}"
        if ("event" in policy) == ("exitCode" in policy) or policy.get("exitCode") == 0:
            yield (*path, index), "manifest-exit", "needs an event or an exit code", "one of them, not 0"
        if policy.get("event", "*") not in EVENTS:
            what = f"{policy['event']} is no event of Volcano"
            yield (*path, index), "manifest-exit", what, f"one of {', '.join(sorted(EVENTS))}"
