"""Render specs and locks to files: one template, the same bytes every time."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import jinja2

from images.buildinfo import build_info, isotune_version
from images.errors import EXIT_CHECK_FAILED, UserError
from images.launch.examples import EXAMPLES, example_files
from images.lockfile import STALE, Lock, lock_status, stale_error
from images.spec import IMAGES, ROOT, BackendSpec
from images.spec_types import UNRESOLVED

RENDERED = IMAGES / "rendered"
WHOLE = (RENDERED, EXAMPLES)
TEMPLATES = ("Dockerfile", "Dockerfile.dockerignore", "activate.sh")
BANNER = (
    "Rendered by `build.py render` from images/backends/{name}.yaml and images/locks/{image}; do not edit."
)

Files = dict[Path, str]


def render_all(specs: Collection[BackendSpec]) -> Files:
    """Return path -> text of every rendered file; raises UserError if a lock is stale."""
    files: Files = {}
    for spec in specs:
        files |= render_backend(spec)
    return files | example_files(specs)


def render_backend(spec: BackendSpec) -> Files:
    """Return path -> text of the files of one image. A missing lock is rendered as `missing`."""
    status, lock = lock_status(spec)
    if lock and status == STALE:
        raise stale_error(spec, lock)
    folder = RENDERED / spec.image
    values = _values(spec, lock)
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(IMAGES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quoted"] = _quoted
    texts = {name: environment.get_template(f"{name}.j2").render(values) for name in TEMPLATES}
    texts["build-info.json"] = json.dumps(build_info(spec, lock), indent=2, ensure_ascii=False) + "\n"
    if spec.provided:
        pins = "".join(f"{name}=={version}\n" for name, version in sorted(spec.provided.items()))
        texts["constraints.txt"] = f"# {values['banner']}\n{pins}"
    return {folder / name: text for name, text in texts.items()}


def write(files: Files, folders: Collection[Path] = ()) -> list[Path]:
    """Write what differs and remove what is no longer rendered; returns the changed paths.

    `folders`: where `files` are all that there should be, also of images that no spec makes any more.
    """
    changed = [path for path, text in files.items() if _old(path) != text]
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[path], encoding="utf-8")
    leftovers = _leftovers(files, folders)
    for path in leftovers:
        path.unlink()
        if not any(path.parent.iterdir()):
            path.parent.rmdir()
    return changed + leftovers


def check(files: Files, folders: Collection[Path] = ()) -> None:
    """Raise UserError with the diff if the files on disk are not those; `folders` as in `write`."""
    lines: list[str] = []
    for path, text in [*files.items(), *((path, "") for path in _leftovers(files, folders))]:
        name = str(path.relative_to(ROOT))
        old = (_old(path) or "").splitlines()
        lines += difflib.unified_diff(old, text.splitlines(), name, f"{name} (rendered)", lineterm="")
    if lines:
        print("\n".join(lines))
        message = "render: files differ from what the specs and locks say"
        raise UserError(message, "python build.py render", EXIT_CHECK_FAILED)


def _leftovers(files: Files, whole: Collection[Path]) -> list[Path]:
    places = whole or {path.parent for path in files}
    found = (path for folder in places for path in folder.rglob("*"))
    return sorted(path for path in found if path.is_file() and path not in files)


def _old(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _values(spec: BackendSpec, lock: Lock | None) -> dict[str, Any]:
    unresolved = spec.base.digest == UNRESOLVED
    return {
        "banner": BANNER.format(name=spec.name, image=spec.image),
        "spec": spec,
        "base": spec.base.reference if unresolved else f"{spec.base.reference}@{spec.base.digest}",
        "provided": "".join(f" '{name}=={version}'" for name, version in sorted(spec.provided.items())),
        "apt_lines": spec.system_packages.source_lines() if spec.system_packages else [],
        "isotune": isotune_version(),
        "lock_id": lock.lock_id if lock else "missing",
        "spec_checksum": lock.spec_checksum if lock else "missing",
        "local_versions": {version: own for version, own in spec.torch_versions().items() if "+" in version},
    }


def _quoted(value: str) -> str:
    """Quote a value for a Dockerfile's ENV and LABEL, where `$` would be replaced."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$") + '"'
