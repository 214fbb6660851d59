"""Write a launch as YAML: data in, text out, so that no value can break a file; a head says what to know."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import Any

import yaml

from images.launch.compose import compose_documents
from images.launch.gang import trainjob_documents, volcano_documents
from images.launch.kubernetes import indexed_documents, job_documents, jobset_documents
from images.launch.plan import Launch

Documents = Callable[[Launch], list[dict[str, Any]]]
MAKERS: dict[str, Documents] = {
    "compose": compose_documents,
    "job": job_documents,
    "indexed-job": indexed_documents,
    "jobset": jobset_documents,
    "trainjob": trainjob_documents,
    "volcano": volcano_documents,
}


class _Dumper(yaml.SafeDumper):
    """Lists are indented below their key, as yamllint wants them, and nothing is an alias."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        return super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def documents(launch: Launch) -> list[dict[str, Any]]:
    """Return the documents of the file as data."""
    return MAKERS[launch.shape](launch)


def render_launch(launch: Launch, head: list[str]) -> str:
    """Return the file: the lines of `head` and notes as comments, then the documents."""
    lines = [*head, *notes(launch)]
    parts = [
        yaml.dump(part, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
        for part in documents(launch)
    ]
    return "".join(f"# {line}\n" for line in lines) + "---\n".join(["", *parts] if len(parts) > 1 else parts)


def notes(launch: Launch) -> list[str]:
    """Return what a reader has to know or do: lines without marks."""
    options, spec = launch.options, launch.spec
    found = []
    if "@sha256:" not in launch.image:
        found.append(
            "image: without a digest, for none is known before a push. Then `docker image inspect --format"
            " '{{index .RepoDigests 0}}' NAME:TAG` tells it: --image NAME@sha256:DIGEST"
        )
    if launch.has_devices and spec.runtime.groups and not options.groups:
        names = ", ".join(spec.runtime.groups)
        node = (spec.runtime.devices or ["the device"])[0].format(index=0)
        found.append(
            f"groups: device nodes belong to {names} of the host; if the user may not open them, add --groups"
            f" with the numbers that `build.py doctor {spec.selection}` tells there, such as"
            f' "$(stat -c %g {shlex.quote(node)})"'
        )
    if launch.shape != "compose" and spec.runtime.kubernetes.needs_mounts and not options.driver_mounts:
        found.append(
            "driver: its libraries are brought in by the vendor's container runtime on the nodes; where that"
            " is missing, add --driver-mounts"
        )
    if any(place.path.startswith(".") for place in launch.places.values() if not place.claim):
        found.append("paths that begin with a dot are seen from this file's folder")
    if launch.nodes > 1 and launch.shape != "compose":
        found.append("output: every node mounts it; the claim has to be ReadWriteMany")
    if options.exceptions and launch.extras.ulimits and launch.shape != "compose":
        limits = ", ".join(launch.extras.ulimits)
        found.append(f"exceptions: Kubernetes has no word for ulimits ({limits}): set them in the runtime")
    if launch.shape == "trainjob":
        found.append("numProcPerNode is told: Trainer counts only resources with `gpu` in their name")
    return found
