"""Folders that stand for `/` of another machine, and the outputs that its tools print."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from train.checks.host.needs import Needs, read_needs
from train.checks.host.root import Identity, Root
from train.image import BuildInfo

RENDERED = Path(__file__).resolve().parents[2] / "images" / "rendered"
OUTPUTS = Path(__file__).resolve().parent / "checks" / "host" / "outputs"
IMAGES = sorted(path.parent.name for path in RENDERED.glob("*/build-info.json"))
WITH_DEVICE = [name for name in IMAGES if name != "cpu"]
# Whoever runs the tests owns the files of a fake root: this user does not, and is in none of its groups.
STRANGER = Identity(987_654, frozenset([0, 876_543]))


@cache
def build_info_of(image: str) -> BuildInfo:
    """The build info of a rendered image, as `train` reads it; not to be written into."""
    path = RENDERED / image / "build-info.json"
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    fields = {name: content.get(name) for name in BuildInfo.__dataclass_fields__}
    return BuildInfo(**fields | {"path": path, "content": content})


def needs_of(image: str) -> Needs:
    """What a rendered image needs; a copy that may be changed."""
    return copy.deepcopy(read_needs(build_info_of(image)))


def output_of(name: str) -> str:
    """A tool's output; the first line of the file says where its form was seen."""
    return (OUTPUTS / f"{name}.txt").read_text(encoding="utf-8").partition("\n")[2]


def fake_root(folder: Path, files: Mapping[str, str] = {}, user: Identity = STRANGER, **tools: str) -> Root:
    """A root with these files (open to everyone), and tools that print an output: npu_smi="name"."""
    for path, text in files.items():
        place = folder / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        place.chmod(0o666)
    for name, output in tools.items():
        put_tool(folder, name.replace("_", "-"), f"tail -n +2 '{OUTPUTS / output}.txt'")
    return Root(folder, user)


def put_tool(folder: Path, name: str, script: str) -> Path:
    """A tool of the fake root that runs a line of shell."""
    path = folder / "usr/local/bin" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def whole_host(image: str, cards: int = 2) -> dict[str, str]:
    """The files that a sound host or container has of what an image needs."""
    needs = needs_of(image)
    paths = [node.replace("{index}", str(card)) for node in needs.nodes for card in range(cards)]
    paths = [path for path in paths if path != "/dev/dri"]
    paths += ["/dev/dri/card0", "/dev/dri/renderD128"] if "/dev/dri" in needs.nodes else []
    libraries = [f"{one['folders'][0]}/{one['name']}" for one in needs.runtime["libraries"]]
    sources = [mount.split(":")[0] for mount in needs.runtime["mounts"]]
    inside = [path for path in sources if not any(other.startswith(path + "/") for other in libraries)]
    places = dict.fromkeys([*paths, *libraries, *inside, "/tmp/there"], "here\n")
    return {**places, "/proc/mounts": "shm /dev/shm tmpfs rw,nosuid,size=16777216k 0 0\n"}
