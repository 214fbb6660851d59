"""Read single files out of a built image: from the engine, or from an OCI layout as folder or .tar."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from images.errors import EXIT_DATA, EXIT_USAGE, UserError


@dataclass(frozen=True)
class Extracted:
    """What was read of an image: its manifest's digest, and path -> content."""

    name: str
    digest: str
    files: dict[str, bytes]


def extract(image: str, paths: Iterable[str]) -> Extracted:
    """Return files of an image: a reference that the engine has, or oci:PATH.

    Raises UserError: 65 where the image has not all of them, or is no image of one platform.
    """
    kind, _, path = image.partition(":")
    found = _of_layout(Path(path), paths) if kind == "oci" else _of_engine(image, paths)
    missing = [path for path in paths if path not in found.files]
    if missing:
        lines = [f"{image}: has no {path}" for path in missing]
        raise UserError("\n".join(lines), "it was not built by this build.py: build it anew", EXIT_DATA)
    return found


def _of_engine(image: str, paths: Iterable[str]) -> Extracted:
    from images.engine import connect

    engine = connect()
    digest = engine.digest(image)
    if digest is None:
        hint = "build it, `docker pull` it, or name a layout: oci:PATH"
        raise UserError(f"{image}: the engine has no such image", hint, EXIT_USAGE)
    return Extracted(image, digest, engine.read_files(image, paths))


def _of_layout(path: Path, paths: Iterable[str]) -> Extracted:
    try:
        with _blobs(path) as read:
            (described,) = json.load(read("index.json"))["manifests"]
            manifest: dict[str, Any] = json.load(read(_blob(described["digest"])))
            wanted = set(paths)
            files: dict[str, bytes] = {}
            # The newest layer that has a file has the valid one; ours are the last.
            for layer in reversed(manifest["layers"]):
                found = _members(read(_blob(layer["digest"])), wanted - files.keys())
                files |= found
                if wanted <= files.keys():
                    break
    except (OSError, KeyError, ValueError, tarfile.TarError) as error:
        message = f"oci:{path}: is not an OCI layout of one image: {error}"
        raise UserError(message, "build.py --backend NAME --output oci:PATH makes one", EXIT_DATA) from None
    return Extracted(f"oci:{path.name}", described["digest"], files)


@contextmanager
def _blobs(path: Path) -> Iterator[Callable[[str], IO[bytes]]]:
    """Yield how a file of the layout is opened."""
    if path.is_dir():
        yield lambda name: (path / name).open("rb")
        return
    with tarfile.open(path) as archive:

        def member(name: str) -> IO[bytes]:
            stream = archive.extractfile(name)
            if stream is None:
                raise KeyError(name)
            return stream

        yield member


def _members(stream: IO[bytes], wanted: set[str]) -> dict[str, bytes]:
    found = {}
    with stream, tarfile.open(fileobj=stream, mode="r:*") as layer:
        for entry in layer:
            name = f"/{entry.name.removeprefix('./')}"
            content = layer.extractfile(entry) if name in wanted and entry.isreg() else None
            if content:
                found[name] = content.read()
    return found


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"
