"""Manifests with one fault each, made of the examples: a check that never finds one proves nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import yaml

EXAMPLES = Path(__file__).resolve().parent.parent / "compose" / "rendered" / "cuda"
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
COMPOSE, YAMLLINT, KUBERNETES, TRAINER, RULES = "compose", "yamllint", "kubernetes", "trainer", "rules"
CHECKOV = "checkov"


class Broken(NamedTuple):
    """`break_it` changes the documents of a shape's example, `rewrite` its text; `rule` is our own rule."""

    name: str
    shape: str
    found_by: str
    break_it: Callable[[list[Any]], object] | None = None
    rewrite: Callable[[str], str] | None = None
    rule: str = ""

    def text(self) -> str:
        """Return the faulty file."""
        text = (EXAMPLES / f"{self.shape}.yaml").read_text(encoding="utf-8")
        if self.rewrite:
            changed = self.rewrite(text)
            assert changed != text, self.name
            return changed
        documents = list(yaml.load_all(text, Loader=LOADER))
        assert self.break_it
        self.break_it(documents)
        return yaml.dump_all(documents, Dumper=DUMPER, sort_keys=False)


def job(documents: list[Any]) -> dict[str, Any]:
    """Return the spec of the Job that a file holds, wherever it is."""
    found = next(part for part in documents if part["kind"] in ("Job", "JobSet", "TrainingRuntime"))
    spec = found["spec"]
    if found["kind"] == "TrainingRuntime":
        spec = spec["template"]["spec"]
    return spec["replicatedJobs"][0]["template"]["spec"] if "replicatedJobs" in spec else spec


def pod(documents: list[Any]) -> dict[str, Any]:
    spec = job(documents)
    return (spec["tasks"][0] if "tasks" in spec else spec)["template"]["spec"]


def container(documents: list[Any]) -> dict[str, Any]:
    return pod(documents)["containers"][0]


def service(documents: list[Any]) -> dict[str, Any]:
    return documents[0]["services"]["train"]


def last(documents: list[Any]) -> dict[str, Any]:
    return documents[-1]["spec"]


def set_env(documents: list[Any], name: str, value: Any) -> None:
    entry = next(entry for entry in container(documents)["env"] if entry["name"] == name)
    entry["value"] = value


def volume(documents: list[Any], name: str) -> dict[str, Any]:
    return next(entry for entry in pod(documents)["volumes"] if entry["name"] == name)


def mount(documents: list[Any], name: str) -> dict[str, Any]:
    return next(entry for entry in container(documents)["volumeMounts"] if entry["name"] == name)


def policy(documents: list[Any]) -> list[Any]:
    return job(documents)["podFailurePolicy"]["rules"]


# What the programs and models of others find.
BY_OTHERS = [
    Broken("a misspelt key of compose", "compose", COMPOSE, lambda d: service(d).update(comand=[])),
    Broken("a size that is none", "compose", COMPOSE, lambda d: service(d).update(shm_size="16 elephants")),
    Broken(
        "a duration that is none", "compose", COMPOSE, lambda d: service(d).update(stop_grace_period="5q")
    ),
    Broken(
        "an undefined network",
        "compose",
        COMPOSE,
        lambda d: (service(d).pop("network_mode"), service(d).update(networks=["there"])),
    ),
    Broken(
        "a tab", "job", YAMLLINT, rewrite=lambda text: text.replace("  name: isotune", "\tname: isotune", 1)
    ),
    Broken(
        "a key twice",
        "job",
        YAMLLINT,
        rewrite=lambda text: text.replace("kind: Job\n", "kind: Job\nkind: Job\n"),
    ),
    Broken("a misspelt key of a Job", "job", KUBERNETES, lambda d: job(d).update(backofLimit=1)),
    Broken("a word for a number", "job", KUBERNETES, lambda d: job(d).update(backoffLimit="many")),
    Broken("an old API", "job", KUBERNETES, lambda d: d[0].update(apiVersion="batch/v1beta1")),
    Broken("a number as a variable", "job", KUBERNETES, lambda d: container(d)["env"][0].update(value=1)),
    Broken(
        "a misspelt key in a JobSet", "jobset", KUBERNETES, lambda d: container(d).update(imagePolicy="x")
    ),
    Broken("a misspelt key in a runtime", "trainjob", KUBERNETES, lambda d: container(d).update(argz=[])),
    Broken("a misspelt key in a Volcano pod", "volcano", KUBERNETES, lambda d: pod(d).update(volumez=[])),
    Broken(
        "a misspelt key of a TrainJob", "trainjob", TRAINER, lambda d: last(d)["trainer"].update(numNods=3)
    ),
    Broken(
        "processes as a word", "trainjob", TRAINER, lambda d: last(d)["trainer"].update(numProcPerNode="auto")
    ),
    Broken(
        "a field of an older Trainer",
        "trainjob",
        TRAINER,
        lambda d: d[0]["spec"]["mlPolicy"]["torch"].update(numProcPerNode="auto"),
    ),
    Broken(
        "a misspelt key of a JobSet",
        "jobset",
        TRAINER,
        lambda d: last(d)["failurePolicy"].update(maxRestart=1),
    ),
    Broken(
        "a privileged container",
        "job",
        CHECKOV,
        lambda d: container(d)["securityContext"].update(privileged=True),
    ),
    Broken("a JobSet on the host's network", "jobset", CHECKOV, lambda d: pod(d).update(hostNetwork=True)),
    Broken(
        "a runtime with a token", "trainjob", CHECKOV, lambda d: pod(d).pop("automountServiceAccountToken")
    ),
    Broken(
        "Volcano with a writable root",
        "volcano",
        CHECKOV,
        lambda d: container(d)["securityContext"].update(readOnlyRootFilesystem=False),
    ),
]
