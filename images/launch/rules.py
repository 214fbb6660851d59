"""House rules on manifests: what no schema says, looked up in the finished file. Every finding at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import yaml

from images.faults import Fault, KeyPath, dotted, line_of
from images.launch.compose_rules import compose_findings
from images.launch.gang_rules import gang_findings
from images.launch.job_rules import job_findings
from images.launch.pod_rules import Finding, pod_findings
from images.specfile import LOADER

RULES = {
    "manifest-cards": "cards are whole numbers in quotes, and requests equal limits",
    "manifest-exit": "exit codes of train fail or repeat a job as they should",
    "manifest-image": "a manifest names an image that does not move by design",
    "manifest-names": "names lead to each other, and pods' names fit their limit",
    "manifest-offline": "no library of a job may ask a hub",
    "manifest-ranks": "all nodes are started and told the same number of nodes and the same address",
    "manifest-room": "/dev/shm has a limit that the memory holds",
    "manifest-safe": "a plain user, a read-only root, no privileges, default seccomp, nothing of the host",
    "manifest-stop": "a job has time to save before it is killed",
    "manifest-volumes": "every mount has its volume, and model and data are read-only",
}

# Where the pods of a kind are: keys, and `*` for every item of a list.
PODS: dict[str, KeyPath] = {
    "Job": ("spec", "template"),
    "JobSet": ("spec", "replicatedJobs", "*", "template", "spec", "template"),
    "TrainingRuntime": (
        *("spec", "template", "spec", "replicatedJobs", "*", "template", "spec", "template"),
    ),
    "Job.batch.volcano.sh": ("spec", "tasks", "*", "template"),
}


def kind_of(document: dict[str, Any]) -> str:
    """Return the kind; Volcano's Job has another one's name."""
    kind = str(document.get("kind", ""))
    group = str(document.get("apiVersion", "")).partition("/")[0]
    return f"{kind}.{group}" if group == "batch.volcano.sh" else kind


def pods_of(document: dict[str, Any]) -> list[tuple[KeyPath, dict[str, Any]]]:
    """Return the pod templates of a document with their key paths."""
    pattern = PODS.get(kind_of(document))
    return list(_matches(document, pattern, ())) if pattern else []


def _matches(value: Any, pattern: KeyPath, path: KeyPath) -> Iterator[tuple[KeyPath, dict[str, Any]]]:
    if not pattern:
        if isinstance(value, dict):
            yield path, value
        return
    key, *rest = pattern
    if key == "*" and isinstance(value, list):
        for index, item in enumerate(value):
            yield from _matches(item, tuple(rest), (*path, index))
    elif isinstance(value, dict) and key in value:
        yield from _matches(value[key], tuple(rest), (*path, key))


def check_manifest(file: str, text: str) -> list[Fault]:
    """Return every finding of a manifest or Compose file, in the order of its lines."""
    try:
        nodes = list(yaml.compose_all(text, Loader=LOADER))
        documents = list(yaml.load_all(text, Loader=LOADER))
    except yaml.YAMLError as error:
        return [Fault(file, 1, "", f"is not YAML: {str(error).splitlines()[0]}", "build.py render")]
    if not documents or not all(isinstance(document, dict) for document in documents):
        return [Fault(file, 1, "", "holds something else than objects", "build.py render")]
    found: list[Fault] = []
    for number, (node, document) in enumerate(zip(nodes, documents, strict=True)):
        for path, rule, what, cure in _findings(documents, number, document):
            found.append(Fault(file, line_of(node, path), rule, f"{dotted(path)}: {what}", cure))
    return sorted(found, key=lambda fault: fault.line)


def _findings(documents: list[Any], number: int, document: dict[str, Any]) -> Iterator[Finding]:
    if "services" in document:
        yield from compose_findings(document)
        return
    for path, template in pods_of(document):
        yield from pod_findings(path, template)
    others = [other for index, other in enumerate(documents) if index != number]
    more: tuple[Callable[..., Iterator[Finding]], ...] = (job_findings, gang_findings)
    for findings in more:
        yield from findings(kind_of(document), document, others)
