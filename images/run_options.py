"""Options of `docker run` by which a container gets its devices: the spec's, as far as this host has them."""

from __future__ import annotations

import grp
import re
from dataclasses import dataclass, field
from pathlib import Path

from images.spec_host import Runtime


@dataclass
class RunOptions:
    """options: for nodes, mounts, groups and shared memory. vendor: further ones that an engine may refuse.
    absent: what the spec names and this host does not have, a line each.
    """

    options: list[str] = field(default_factory=list)
    vendor: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)


def run_options(runtime: Runtime, root: Path = Path("/")) -> RunOptions:
    """Return the options for a host whose file system is `root`."""
    found = RunOptions([f"--shm-size={runtime.shm_size}"], list(runtime.docker_options))
    for pattern in runtime.devices:
        nodes = _nodes(pattern, root)
        found.options += [f"--device={node}" for node in nodes]
        found.absent += [] if nodes else [f"device {pattern.replace('{index}', 'N')} is not on this host"]
    for pattern in runtime.optional_devices:
        found.options += [f"--device={node}" for node in _nodes(pattern, root)]
    for mount in [*runtime.mounts, *runtime.optional_mounts]:
        source, _, rest = mount.partition(":")
        # Docker would make an empty folder of a source that is not there.
        if _inside(root, source).exists():
            found.options.append(f"--volume={source}:{rest or source}")
        elif mount in runtime.mounts:
            found.absent.append(f"{source} is not on this host")
    for name in runtime.groups:
        number = _group(name, root)
        found.options += [] if number is None else [f"--group-add={number}"]
        found.absent += [f"group {name} is not on this host"] if number is None else []
    found.options += [option for option in _owners(found.options, root) if option not in found.options]
    return found


def _owners(options: list[str], root: Path) -> list[str]:
    """Return the options for the groups that own the nodes; the numbers of those within, for a folder."""
    nodes = [_inside(root, option.partition("=")[2]) for option in options if option.startswith("--device=")]
    paths = [path for node in nodes for path in (node.glob("*") if node.is_dir() else [node])]
    gids = {path.stat().st_gid for path in paths if not path.is_dir()}
    return [f"--group-add={gid}" for gid in sorted(gids - {0})]


def _nodes(pattern: str, root: Path) -> list[str]:
    """Return the nodes that there are; {index} stands for any number."""
    head, index, _ = pattern.partition("{index}")
    if not index:
        return [pattern] if _inside(root, pattern).exists() else []
    form = re.compile(re.escape(pattern).replace(re.escape("{index}"), r"(\d+)"))
    numbered = []
    for path in _inside(root, head).parent.glob("*"):
        name = f"/{path.relative_to(root)}"
        if match := form.fullmatch(name):
            numbered.append((int(match[1]), name))
    return [name for _, name in sorted(numbered)]


def _group(name: str, root: Path) -> int | None:
    """Return a group's number: its name may be unknown in the container."""
    if root == Path("/"):
        try:
            return grp.getgrnam(name).gr_gid
        except KeyError:
            return None
    path = root / "etc/group"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return next((int(line.split(":")[2]) for line in lines if line.split(":")[0] == name), None)


def _inside(root: Path, path: str) -> Path:
    return root / path.lstrip("/")
