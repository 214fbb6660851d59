"""Device nodes, mounts, libraries and groups: there, missing, or closed to this user."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import PurePosixPath

from train.checks.host.finding import FORBIDDEN, MISSING, NOTE, PRESENT, Seen
from train.checks.host.needs import Needs
from train.checks.host.root import Root

READ, READ_WRITE = 4, 6
CARD = "{index}"
GROUP = "--group-add="
ON_HOST = "install the driver on this host, and load its module"
RENDER_NODES = ("card*", "renderD*")


def cards(needs: Needs, root: Root) -> list[int]:
    """The numbers of the cards whose nodes are there."""
    found: set[int] = set()
    for node in needs.nodes:
        if CARD in node:
            before, _, after = node.partition(CARD)
            for path in root.glob(f"{before}[0-9]*{after}"):
                number = path.removeprefix(before).removesuffix(after)
                found |= {int(number)} if number.isdigit() else set()
    return sorted(found)


def look_at_nodes(needs: Needs, root: Root, on_host: bool = False) -> Iterator[Seen]:
    """Each node that is needed or can be there; one that is in a folder (/dev/dri) by its own name.

    on_host: a node is closed only where no group opens it, for the line that starts a container names groups.
    """
    injected = needs.runtime["injected_devices"]
    for node in needs.nodes:
        cure = ON_HOST if on_host else _bring(needs, node) if node in injected else f"--device={node}"
        if CARD in node:
            yield from _card_nodes(needs, root, node, cure, on_host)
        elif not root.exists(node) or root.is_empty_folder(node):
            yield Seen("device", node, MISSING, _why_missing(root, node), cure)
        else:
            yield from _open(root, node, on_host)
    for node in needs.runtime["optional_devices"]:
        if root.exists(node):
            yield from _open(root, node, on_host)
        else:
            yield Seen("device", node, NOTE, "not here; only some hosts have it", needed=False)


def _card_nodes(needs: Needs, root: Root, node: str, cure: str, on_host: bool) -> Iterator[Seen]:
    found = [node.replace(CARD, str(index)) for index in cards(needs, root)]
    here = [path for path in found if root.exists(path)]
    if not here:
        first = cure.replace(CARD, "0")
        more = f"{first}, and so on for each card" if CARD in cure else first
        yield Seen("device", node, MISSING, "no card has its node here", more)
    for path in here:
        if root.is_empty_folder(path):
            yield Seen("device", path, MISSING, _why_missing(root, path), cure.replace(node, path))
        else:
            yield from _open(root, path, on_host)


def _open(root: Root, node: str, on_host: bool) -> Iterator[Seen]:
    inside = [path for name in RENDER_NODES for path in root.glob(f"{node}/{name}")]
    for path in inside or [node]:
        if root.may(path, READ_WRITE):
            yield Seen("device", path, PRESENT)
            continue
        detail, cure = _closed(root, path, READ_WRITE)
        if on_host and cure.startswith(GROUP):
            yield Seen("device", path, PRESENT, f"{detail}; {cure} opens it")
        else:
            yield Seen("device", path, FORBIDDEN, detail, cure)


def _closed(root: Root, path: str, wanted: int) -> tuple[str, str]:
    """Why a user has no right, and which group would give it."""
    found = root.owner(path)
    if found is None:
        return "a folder on the way is closed to this user", "--user=0, or open the folder on the host"
    mode, gid = found
    detail = f"mode {mode:03o}, group {gid}; this user is {root.user.uid}"
    if mode >> 3 & wanted == wanted:
        return detail, f"{GROUP}{gid}"
    return detail, f"no group has the right: on the host `chmod g+rw {path}`, or --user=0"


def _why_missing(root: Root, path: str) -> str:
    if root.is_empty_folder(path):
        return "an empty folder: an engine makes one for a mount that the host does not have"
    return ""


def look_at_mounts(needs: Needs, root: Root, on_host: bool) -> Iterator[Seen]:
    """What the driver on the host brings: in a container at its target, on the host at its source."""
    for mount in needs.runtime["mounts"]:
        source, target = ends(mount)
        path = source if on_host else target
        cure = ON_HOST if on_host else f"-v {mount}"
        if not root.exists(path) or root.is_empty_folder(path):
            yield Seen("mount", path, MISSING, _why_missing(root, path), cure)
        elif not on_host and not root.may(path, READ):
            yield Seen("mount", path, FORBIDDEN, *_closed(root, path, READ))
        else:
            yield Seen("mount", path, PRESENT)


def look_at_libraries(needs: Needs, root: Root, on_host: bool) -> Iterator[Seen]:
    """The files of the driver that torch loads, in their usual folders and those of LD_LIBRARY_PATH."""
    named = [] if on_host else os.environ.get("LD_LIBRARY_PATH", "").split(":")
    for library in needs.runtime["libraries"]:
        places = [folder for folder in (*library["folders"], *named) if folder.startswith("/")]
        paths = [str(PurePosixPath(folder) / library["name"]) for folder in places]
        path = next((path for path in paths if root.exists(path)), None)
        cure = ON_HOST if on_host else library["given_by"]
        if path is None:
            searched = ", ".join(library["folders"])
            yield Seen("library", library["name"], MISSING, f"not in {searched}", cure)
        elif not on_host and not root.may(path, READ):
            yield Seen("library", path, FORBIDDEN, *_closed(root, path, READ))
        else:
            yield Seen("library", path, PRESENT)


def gids(needs: Needs, root: Root) -> list[int]:
    """The numbers of the groups that a user who owns nothing needs for nodes, mounts and libraries.

    Group 0 is left out: every image's user is in it.
    """
    wanted: set[int] = set()
    nodes = [seen.name for seen in look_at_nodes(needs, root) if seen.status in (PRESENT, FORBIDDEN)]
    sources = [ends(mount)[0] for mount in needs.runtime["mounts"]]
    mounts = [path for path in sources if root.exists(path)]
    for paths, rights in ((nodes, READ_WRITE), (mounts, READ)):
        for mode, gid in filter(None, map(root.owner, paths)):
            if mode & rights != rights and mode >> 3 & rights == rights:
                wanted.add(gid)
    return sorted(wanted - {0})


def named_gids(needs: Needs, root: Root) -> dict[str, int]:
    """The numbers that the backend's groups have by /etc/group."""
    entries = [line.split(":") for line in root.read("/etc/group").splitlines()]
    table = {entry[0]: entry[2] for entry in entries if len(entry) > 2 and entry[2].isdigit()}
    return {name: int(table[name]) for name in needs.runtime["groups"] if name in table}


def _bring(needs: Needs, node: str) -> str:
    """The option by which the engine's own runtime brings a node."""
    own = [support["options"][0] for support in needs.runtime["engine_support"]]
    return next(iter([*needs.runtime["docker_options"], *own]), f"--device={node}")


def ends(mount: str) -> tuple[str, str]:
    """Source and target of a mount: path, path:path or path:path:ro."""
    parts = mount.split(":")
    return parts[0], parts[min(1, len(parts) - 1)]
