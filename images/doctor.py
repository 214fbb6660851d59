"""`build.py doctor`: is this host ready? The engine is asked here, all else by the run side's own program.

The program gets the spec as a build-info.json: there is one examination, for a container and for its host.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from images.errors import UserError
from images.options import Parser
from images.selection import add_selection, selected
from images.spec import ROOT, BackendSpec

PROGRAM = "train.checks.host"
CDI_FOLDERS = ("etc/cdi", "var/run/cdi")


def run_doctor(given: list[str]) -> None:
    """`build.py doctor`: is this host ready for a backend, and which line starts it here?"""
    parser = Parser(prog="build.py doctor", description=run_doctor.__doc__, allow_abbrev=False)
    add_selection(parser)
    parser.add_argument("--json", action="store_true", help="for programs")
    what = "look below another root, such as a host's that is mounted"
    parser.add_argument("--root", type=Path, default=Path("/"), metavar="DIR", help=what)
    options = parser.parse_args(given)
    if not options.backend:
        parser.error("--backend is missing")
    (spec,) = selected(options)
    raise SystemExit(examine(spec, options.root.resolve(), options.json))


def examine(spec: BackendSpec, root: Path, as_json: bool) -> int:
    """Print what this host has for a backend.

    Returns 0, 1 where a check failed, 69 where something is missing.
    """
    seen, runtimes, cdi = look_at_engine(spec, cdi_kinds(root))
    asked = {
        "root": str(root),
        "seen": seen,
        "engine": {"runtimes": runtimes, "cdi": cdi},
        "json": as_json,
    }
    return _run_side(spec, asked)


def look_at_engine(
    spec: BackendSpec, declared: list[str]
) -> tuple[list[dict[str, Any]], list[str], list[str]]:
    """Return what was seen of the engine, as the run side's findings are, its runtimes, and its CDI kinds.

    declared: the kinds that files of this host declare; they count where an engine of this host reads them.
    """
    from images.engine import connect

    try:
        engine = connect()
    except UserError as error:
        cure = error.hint or "start Docker, or let DOCKER_HOST name an engine"
        return [_seen("Docker Engine", "missing", error.message.removeprefix("engine: "), cure)], [], []
    runtimes = sorted(engine.info.get("Runtimes") or {})
    cdi = declared if engine.info.get("CDISpecDirs") and _is_local() else []
    version = f"{engine.info.get('ServerVersion', 'unknown')} on {engine.architecture}"
    seen = [_seen("Docker Engine", "present", version), _seen("docker buildx", "present")]
    if engine.architecture not in spec.architectures:
        detail = f"{spec.image} is for {', '.join(spec.architectures)}"
        seen.append(_seen(engine.architecture, "failed", detail, "build on such a machine"))
    seen += [_support(spec, [*runtimes, *cdi]), _disk(str(engine.info.get("DockerRootDir", "")))]
    built = engine.digest(f"isotune:{spec.image}")
    detail = built or f"not here: python build.py {spec.selection}"
    seen.append(_seen(f"isotune:{spec.image}", "present" if built else "note", detail, needed=False))
    return [one for one in seen if one], runtimes, cdi


def _is_local() -> bool:
    return os.environ.get("DOCKER_HOST", "unix://").startswith("unix://")


def _support(spec: BackendSpec, found: list[str]) -> dict[str, Any]:
    """What the engine has for the backend. Where nodes can be named, nothing of it is needed."""
    known = {support.runtime or support.cdi or "": support.remedy for support in spec.runtime.engine_support}
    here = [name for name in known if name in found]
    if here:
        return _seen(here[0], "present", "the engine supports this backend")
    if not known:
        return {}
    needed = not spec.runtime.devices
    cure = "; or ".join(known.values())
    return _seen(" or ".join(known), "missing" if needed else "note", "the engine has none", cure, needed)


def _disk(folder: str) -> dict[str, Any]:
    """The free space where the engine keeps its images; an engine elsewhere does not tell it."""
    if not (folder and _is_local() and Path(folder).is_dir()):
        return _seen("disk", "unknown", "the engine keeps its images on another machine", needed=False)
    free = shutil.disk_usage(folder).free / 2**30
    return _seen("disk", "note", f"{free:.1f} GiB free in {folder}", needed=False)


def cdi_kinds(root: Path) -> list[str]:
    """Return the kinds of devices (vendor/class) that the host's CDI files declare."""
    import yaml

    kinds = set()
    for path in _files(root / folder for folder in CDI_FOLDERS):
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            continue
        if isinstance(content, dict) and isinstance(content.get("kind"), str):
            kinds.add(content["kind"])
    return sorted(kinds)


def _files(folders: Iterable[Path]) -> list[Path]:
    return [
        path for folder in folders for path in sorted(folder.glob("*")) if path.suffix in (".json", ".yaml")
    ]


def _run_side(spec: BackendSpec, asked: dict[str, Any]) -> int:
    """Run the examination as a program: the two sides share no code, only build-info.json."""
    from images.buildinfo import build_info
    from images.lockfile import lock_status

    with tempfile.TemporaryDirectory(prefix="isotune-doctor-") as folder:
        path = Path(folder) / "build-info.json"
        path.write_text(json.dumps(build_info(spec, lock_status(spec)[1])), encoding="utf-8")
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "ISOTUNE_BUILD_INFO": str(path)}
        done = subprocess.run(
            [sys.executable, "-m", PROGRAM],
            input=json.dumps(asked),
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            check=False,
        )
    print(done.stdout, end="")
    return done.returncode


def _seen(name: str, status: str, detail: str = "", cure: str = "", needed: bool = True) -> dict[str, Any]:
    return {
        "kind": "engine",
        "name": name,
        "status": status,
        "detail": detail,
        "cure": cure,
        "needed": needed,
    }
