"""Rules on jobs: exit codes, ranks, names. A Job may stand alone, or inside a JobSet or a runtime."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from images.faults import KeyPath
from images.launch.kubernetes import FAILS_AT_ONCE, FINAL, INDEX, SAVED_AND_STOPPED
from images.launch.pod_rules import Finding, variables

NAME = re.compile(r"^[a-z](?:[-a-z0-9]*[a-z0-9])?$")
LONGEST_NAME = 63


def job_findings(kind: str, document: dict[str, Any], others: list[Any]) -> Iterator[Finding]:
    """Yield every finding of a Job or JobSet, given the other documents of its file."""
    name = str((document.get("metadata") or {}).get("name", ""))
    yield from name_findings(document)
    if kind == "Job":
        path: KeyPath = ("spec",)
        spec = document.get("spec") or {}
        yield from spec_findings(path, spec)
        if spec.get("completionMode") == "Indexed":
            service = _service_of(spec, others)
            yield from _indexed(path, spec, f"{name}-0.{name}")
            yield from _reached(path, spec, name, service)
        yield from _positive(("spec", "ttlSecondsAfterFinished"), spec)
    if kind == "JobSet":
        yield from final_findings(("spec",), document.get("spec") or {})
        for path, spec, group in replicated((), document):
            yield from spec_findings(path, spec)
            yield from _indexed(path, spec, f"{name}-{group}-0-0.{name}")
            yield from _no_second_try(path, spec)
        yield from _positive(("spec", "ttlSecondsAfterFinished"), document.get("spec") or {})


def name_findings(document: dict[str, Any]) -> Iterator[Finding]:
    """Yield findings on an object's name: pods add a number to it."""
    name = str((document.get("metadata") or {}).get("name", ""))
    if not NAME.match(name) or len(name) > LONGEST_NAME - len("-worker-99"):
        what = f"{name!r} with a number behind it is no name of a pod"
        yield ("metadata", "name"), "manifest-names", what, "letters, digits, dashes; at most 53"


def replicated(path: KeyPath, owner: dict[str, Any]) -> Iterator[tuple[KeyPath, dict[str, Any], str]]:
    """Yield (key path, Job's spec, name) of each replicated job of what owns a JobSet's spec."""
    for index, entry in enumerate((owner.get("spec") or {}).get("replicatedJobs") or []):
        below = (*path, "spec", "replicatedJobs", index, "template", "spec")
        yield below, (entry.get("template") or {}).get("spec") or {}, str(entry.get("name"))


def spec_findings(path: KeyPath, spec: dict[str, Any]) -> Iterator[Finding]:
    """Yield findings on the spec of a Job: what exit codes do, and its end."""
    rules = (spec.get("podFailurePolicy") or {}).get("rules") or []
    place = (*path, "podFailurePolicy")
    first = rules[0] if rules else {}
    conditions = first.get("onPodConditions") or [{}]
    if first.get("action") != "Ignore" or conditions[0] != {"type": "DisruptionTarget", "status": "True"}:
        cure = "action: Ignore, onPodConditions: [{type: DisruptionTarget, status: 'True'}]"
        yield place, "manifest-exit", "the first rule is not that disruptions do not count", cure
    names = {container["name"] for container in _containers(spec)}
    found: dict[int, str] = {}
    for index, rule in enumerate(rules):
        codes = rule.get("onExitCodes") or {}
        values = codes.get("values") or []
        if codes and codes.get("containerName") not in names:
            what = f"there is no container {codes.get('containerName')}"
            yield (*place, "rules", index), "manifest-names", what, f"there is {', '.join(sorted(names))}"
        if values != sorted(set(values)) or 0 in values:
            what = f"{values} is not sorted, or has 0 or one code twice"
            yield (*place, "rules", index), "manifest-exit", what, "sort the codes"
        for value in values:
            found.setdefault(value, str(rule.get("action")))
    wanted = {**dict.fromkeys(FAILS_AT_ONCE, "FailJob"), SAVED_AND_STOPPED: "Ignore"}
    for code in [code for code, action in wanted.items() if found.get(code) != action]:
        what = f"exit code {code} leads to {found.get(code, 'another try')}"
        yield place, "manifest-exit", what, f"action: {wanted[code]}"
    yield from _positive((*path, "activeDeadlineSeconds"), spec)


def final_findings(path: KeyPath, spec: dict[str, Any]) -> Iterator[Finding]:
    """Yield what a JobSet would start again though its job said that it is over."""
    rules = (spec.get("failurePolicy") or {}).get("rules") or []
    ends = {
        reason
        for rule in rules
        if rule.get("action") == "FailJobSet"
        for reason in rule["onJobFailureReasons"]
    }
    for reason in [reason for reason in FINAL if reason not in ends]:
        cure = f"action: FailJobSet, onJobFailureReasons: [{', '.join(FINAL)}]"
        yield (*path, "failurePolicy"), "manifest-exit", f"a job that ended by {reason} starts again", cure


def _positive(path: KeyPath, spec: dict[str, Any]) -> Iterator[Finding]:
    value = spec.get(path[-1])
    if not isinstance(value, int) or value < 1:
        yield (
            path,
            "manifest-stop",
            f"{value}: the job or its remains would stay for ever",
            "set it in seconds",
        )


def _containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return ((spec.get("template") or {}).get("spec") or {}).get("containers") or []


def _indexed(path: KeyPath, spec: dict[str, Any], address: str) -> Iterator[Finding]:
    counts = (spec.get("completions"), spec.get("parallelism"))
    for index, container in enumerate(_containers(spec)):
        place = (*path, "template", "spec", "containers", index, "env")
        yield from rank_findings(place, container, counts, address)
        rank = [entry for entry in container.get("env") or [] if entry["name"] == "PET_NODE_RANK"]
        field = rank[0].get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "") if rank else ""
        if field != f"metadata.annotations['{INDEX}']":
            what = f"PET_NODE_RANK is read from {field or 'nothing'}"
            yield place, "manifest-ranks", what, f"the annotation {INDEX}"
    if spec.get("completionMode") != "Indexed":
        yield (*path, "completionMode"), "manifest-ranks", "pods have no number", "completionMode: Indexed"


def rank_findings(
    place: KeyPath, container: dict[str, Any], counts: tuple[Any, ...], address: str
) -> Iterator[Finding]:
    """Yield findings on the variables by which nodes meet; `counts`: the numbers of pods in the manifest."""
    values = variables(container)
    if {*map(str, counts)} != {values.get("PET_NNODES")}:
        what = f"PET_NNODES is {values.get('PET_NNODES')}, the pods are {' and '.join(map(str, counts))}"
        yield place, "manifest-ranks", what, "one number of nodes"
    if values.get("PET_MASTER_ADDR") != address:
        what = f"PET_MASTER_ADDR is {values.get('PET_MASTER_ADDR')}"
        yield place, "manifest-ranks", what, f"node 0 is {address}"


def _service_of(spec: dict[str, Any], others: list[Any]) -> dict[str, Any]:
    subdomain = ((spec.get("template") or {}).get("spec") or {}).get("subdomain")
    named = [other for other in others if other.get("kind") == "Service"]
    return next((other for other in named if other["metadata"].get("name") == subdomain), {})


def _reached(path: KeyPath, spec: dict[str, Any], name: str, service: dict[str, Any]) -> Iterator[Finding]:
    """Yield what keeps pods of an Indexed Job from finding node 0."""
    found = service.get("spec") or {}
    place = (*path, "template", "spec", "subdomain")
    if not service:
        yield place, "manifest-names", "there is no Service of this name", "a headless Service"
        return
    if found.get("clusterIP") != "None" or not found.get("publishNotReadyAddresses"):
        cure = "clusterIP: None and publishNotReadyAddresses: true"
        yield place, "manifest-names", "its Service does not name pods, or only ready ones", cure
    if name not in (found.get("selector") or {}).values():
        what = "its Service selects other pods"
        yield place, "manifest-names", what, f"selector: batch.kubernetes.io/job-name: {name}"
    ports = {str(port.get("port")) for port in found.get("ports") or []}
    for container in _containers(spec):
        if variables(container).get("PET_MASTER_PORT") not in ports:
            yield place, "manifest-names", "its Service lacks PET_MASTER_PORT", "the same port in both"


def _no_second_try(path: KeyPath, spec: dict[str, Any]) -> Iterator[Finding]:
    if spec.get("backoffLimit") != 0:
        what = f"{spec.get('backoffLimit')}: a pod would start again without the others"
        yield (*path, "backoffLimit"), "manifest-exit", what, "backoffLimit: 0, the JobSet starts all again"
