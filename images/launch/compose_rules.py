"""Rules on a Compose file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from images.faults import KeyPath
from images.launch.container import OFFLINE
from images.launch.pod_rules import INPUTS, SHUTDOWN, Finding
from images.lint_rendered import floating

RESTARTS = {"no", "always", "on-failure", "unless-stopped"}
FORBIDDEN = ("privileged", "pid", "ipc", "userns_mode", "cap_add", "entrypoint")


def compose_findings(document: dict[str, Any]) -> Iterator[Finding]:
    """Yield every finding of a Compose file."""
    services = document.get("services") or {}
    for name, service in services.items():
        path: KeyPath = ("services", name)
        yield from _safe(path, service)
        yield from _stop(path, service)
        yield from _volumes(path, service)
        yield from _ranks(path, service, services)


def _safe(path: KeyPath, service: dict[str, Any]) -> Iterator[Finding]:
    user = str(service.get("user", "")).partition(":")[0]
    if user in ("", "0", "root"):
        yield (*path, "user"), "manifest-safe", "may run as root", "user: 1000:1000"
    if service.get("read_only") is not True:
        yield path, "manifest-safe", "its root can be written", "read_only: true"
    if service.get("cap_drop") != ["ALL"]:
        yield path, "manifest-safe", "keeps capabilities", "cap_drop: [ALL]"
    if service.get("security_opt") != ["no-new-privileges:true"]:
        cure = "security_opt: [no-new-privileges:true]"
        yield (*path, "security_opt"), "manifest-safe", "has other privileges", cure
    for key in [key for key in FORBIDDEN if key in service]:
        yield (*path, key), "manifest-safe", "gives the container more than it needs", "leave it out"
    image = str(service.get("image", ""))
    if floating(image):
        yield (*path, "image"), "manifest-image", f"{image!r} moves", "name a version's tag or a digest"
    if not isinstance(service.get("command"), list):
        yield (*path, "command"), "manifest-exit", "is read by a shell", "command: [train, ...]"
    given = service.get("environment") or {}
    lacking = [name for name in OFFLINE if given.get(name) != OFFLINE[name]]
    if lacking:
        yield (*path, "environment"), "manifest-offline", f"lacks {', '.join(lacking)}", "set them to '1'"


def _stop(path: KeyPath, service: dict[str, Any]) -> Iterator[Finding]:
    grace = str(service.get("stop_grace_period", "10s")).removesuffix("s")
    limit = str((service.get("environment") or {}).get(SHUTDOWN, ""))
    if not (grace.isdigit() and limit.isdigit() and int(grace) > int(limit)):
        what = f"{grace} s, while workers may take {limit} s ({SHUTDOWN})"
        yield (*path, "stop_grace_period"), "manifest-stop", what, "more than that, in seconds"
    restart = str(service.get("restart", "no"))
    if restart.partition(":")[0] not in RESTARTS:
        what = f"{restart} is no policy"
        yield (*path, "restart"), "manifest-exit", what, f"one of {', '.join(sorted(RESTARTS))}"
    elif restart != "no":
        what = f"{restart}: a wrong recipe would be tried again and again"
        yield (*path, "restart"), "manifest-exit", what, "restart: 'no'; the same command resumes"


def _volumes(path: KeyPath, service: dict[str, Any]) -> Iterator[Finding]:
    for index, volume in enumerate(service.get("volumes") or []):
        place = (*path, "volumes", index)
        if INPUTS.match(volume["target"]) and volume.get("read_only") is not True:
            yield place, "manifest-volumes", f"{volume['target']} can be written", "read_only: true"
        if (volume.get("bind") or {}).get("create_host_path") is not False:
            what = f"{volume['source']} would be made, as root's, where it is not there"
            yield place, "manifest-volumes", what, "bind: {create_host_path: false}"
    if not any(str(entry).partition(":")[0] == "/tmp" for entry in service.get("tmpfs") or []):
        yield path, "manifest-room", "/tmp is not mounted", "tmpfs: [/tmp:mode=1777,size=...]"
    if "shm_size" not in service:
        yield path, "manifest-room", "/dev/shm has 64 MiB", "shm_size: 16g"


def _ranks(path: KeyPath, service: dict[str, Any], services: dict[str, Any]) -> Iterator[Finding]:
    given = service.get("environment") or {}
    if "PET_NNODES" not in given or service.get("network_mode") == "host":
        return
    nodes = [other for other in services.values() if "PET_NNODES" in (other.get("environment") or {})]
    ranks = sorted(int(other["environment"].get("PET_NODE_RANK", -1)) for other in nodes)
    if ranks != list(range(int(given["PET_NNODES"]))):
        what = f"{given['PET_NNODES']} nodes, whose numbers are {ranks}"
        yield (*path, "environment"), "manifest-ranks", what, "a service for each number from 0 on"
    first = services.get(str(given.get("PET_MASTER_ADDR"))) or {}
    if (first.get("environment") or {}).get("PET_NODE_RANK") != "0":
        what = f"PET_MASTER_ADDR is {given.get('PET_MASTER_ADDR')}"
        yield (*path, "environment"), "manifest-ranks", what, "the service of node 0"
