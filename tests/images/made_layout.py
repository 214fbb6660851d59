"""OCI layouts made by hand, small enough to differ in one thing."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

Files = dict[str, dict[str, Any]]

FILES: Files = {
    "opt": {"type": tarfile.DIRTYPE, "mode": 0o755},
    "opt/a": {"content": b"one"},
    "opt/b": {"type": tarfile.SYMTYPE, "linkname": "a"},
}


def add_blob(layout: Path, data: bytes) -> dict[str, Any]:
    digest = hashlib.sha256(data).hexdigest()
    path = layout / "blobs/sha256" / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return {"digest": f"sha256:{digest}", "size": len(data)}


def layer(files: Files, order: list[str] | None = None) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in order or files:
            settings = {"mode": 0o644, "mtime": 1767225600, **files[name]}
            content = settings.pop("content", b"")
            member = tarfile.TarInfo(name)
            for key, value in settings.items():
                setattr(member, key, value)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def image(layout: Path, layers: list[bytes], **config: Any) -> dict[str, Any]:
    steps = ["RUN : 'make the files'; true", "RUN --mount=x : 'add more'; true"]
    history = [{"created_by": "ENV A=1", "empty_layer": True}, *({"created_by": step} for step in steps)]
    settings = {"config": {"Env": ["A=1"]}, "history": history[: len(layers) + 1], **config}
    manifest = {
        "config": add_blob(layout, json.dumps(settings).encode()),
        "layers": [add_blob(layout, data) for data in layers],
    }
    return add_blob(layout, json.dumps(manifest).encode())


def write_layout(layout: Path, layers: list[bytes], **config: Any) -> str:
    """Write a layout of one image; returns its digest."""
    manifest = image(layout, layers, **config)
    (layout / "index.json").write_text(json.dumps({"manifests": [manifest]}), encoding="utf-8")
    return str(manifest["digest"])


def changed(name: str, **settings: Any) -> Files:
    return {**FILES, name: {**FILES.get(name, {}), **settings}}
