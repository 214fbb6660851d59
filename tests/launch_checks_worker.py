"""What `tests/launch_checks.py` runs inside its environment: findings as JSON on stdout.

`kubernetes VERSIONS FILE...` or `trainer VERSION FILE...`; it imports nothing of this repository.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

JOBSETS = {
    "JobSet": ("spec",),
    "TrainingRuntime": ("spec", "template", "spec"),
    "ClusterTrainingRuntime": ("spec", "template", "spec"),
}
KINDS = {
    "TrainJob": "TrainerV1alpha1TrainJob",
    "TrainingRuntime": "TrainerV1alpha1TrainingRuntime",
    "JobSet": "JobsetV1alpha2JobSet",
}


def standard_objects(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what a schema of Kubernetes can be asked about: the object, or the Jobs and pods inside it."""
    kind, group = str(document.get("kind")), str(document.get("apiVersion")).partition("/")[0]
    if group == "batch.volcano.sh":
        for task in document.get("spec", {}).get("tasks", []):
            metadata = {**task["template"].get("metadata", {}), "name": "task"}
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": task["template"]["spec"]}
    elif kind in JOBSETS:
        part: Any = document
        for key in JOBSETS[kind]:
            part = part.get(key, {})
        for entry in part.get("replicatedJobs", []):
            metadata = {**entry["template"].get("metadata", {}), "name": "child"}
            spec = entry["template"]["spec"]
            yield {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
    elif group != "trainer.kubeflow.org":
        yield document


def kubernetes(versions: list[str], documents: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what the schemas refuse; a kind without a schema is a finding, not a warning."""
    import kubernetes_validate

    for document in documents:
        for found in standard_objects(document):
            for version in versions:
                try:
                    kubernetes_validate.validate(found, version, strict=True)
                except kubernetes_validate.ValidationError as error:
                    place = ".".join(map(str, error.path))
                    yield f"{version}: {found['kind']}: {place}: {error.message}"
                except kubernetes_validate.SchemaNotFoundError as error:
                    yield f"{version}: {found['kind']}: {error}"


def trainer(versions: list[str], documents: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what the models refuse, and each key that is lost on the way through them."""
    from kubeflow_trainer_api import models

    for document in documents:
        name = KINDS.get(str(document.get("kind")))
        if name is None:
            continue
        try:
            passed = getattr(models, name).from_dict(document).to_dict()
        except ValueError as error:
            yield f"{versions[0]}: {document['kind']}: {' '.join(str(error).split())}"
            continue
        for path in lost(document, passed, ""):
            yield f"{versions[0]}: {document['kind']}: {path} is no field"


def lost(before: Any, after: Any, path: str) -> Iterator[str]:
    """Yield the paths that are in `before` and not in `after`."""
    if isinstance(before, dict):
        for key, value in before.items():
            if not isinstance(after, dict) or key not in after:
                yield f"{path}/{key}"
            else:
                yield from lost(value, after[key], f"{path}/{key}")
    elif isinstance(before, list) and isinstance(after, list):
        for index, (old, new) in enumerate(zip(before, after, strict=False)):
            yield from lost(old, new, f"{path}/{index}")


def main(what: str, versions: str, *files: str) -> None:
    check = {"kubernetes": kubernetes, "trainer": trainer}[what]
    found = []
    for file in files:
        documents = [part for part in yaml.safe_load_all(Path(file).read_text(encoding="utf-8")) if part]
        found += [(file, message) for message in check(versions.split(","), documents)]
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
