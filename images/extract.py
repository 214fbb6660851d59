"""Read single files out of a built image: from the engine, or from an OCI layout as folder or .tar."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from images.errors import EXIT_DATA, EXIT_USAGE, UserError

Read = Callable[[str], IO[bytes]]


@dataclass(frozen=True)
class Extracted:
    """What was read of an image: its manifest's digest, and path -> content.

    platform: such as linux-arm64, where it is one of several in a layout; else empty.
    """

    name: str
    digest: str
    files: dict[str, bytes]
    platform: str = ""


def extract(image: str, paths: Sequence[str]) -> list[Extracted]:
    """Return files of an image: a reference that the engine has, or oci:PATH, perhaps of several platforms.

    Raises UserError: 65 where an image has not all of them, or the path is no layout.
    """
    kind, _, path = image.partition(":")
    found = _of_layout(Path(path), paths) if kind == "oci" else [_of_engine(image, paths)]
    lines = [
        f"{image}{': ' if one.platform else ''}{one.platform}: has no {path}"
        for one in found
        for path in paths
        if path not in one.files
    ]
    if lines:
        raise UserError("\n".join(lines), "it was not built by this build.py: build it anew", EXIT_DATA)
    return found


def _of_engine(image: str, paths: Sequence[str]) -> Extracted:
    from images.engine import connect

    engine = connect()
    digest = engine.digest(image)
    if digest is None:
        hint = "build it, `docker pull` it, or name a layout: oci:PATH"
        raise UserError(f"{image}: the engine has no such image", hint, EXIT_USAGE)
    return Extracted(image, digest, engine.read_files(image, paths))


def _of_layout(path: Path, paths: Sequence[str]) -> list[Extracted]:
    try:
        with _blobs(path) as read:
            # One image has an entry for each of its names.
            (top,) = {one["digest"] for one in json.load(read("index.json"))["manifests"]}
            images = list(_manifests(read, top, ""))
            return [
                Extracted(
                    f"oci:{path.name}",
                    digest,
                    _files(read, manifest, set(paths)),
                    platform if len(images) > 1 else "",
                )
                for digest, platform, manifest in images
            ]
    except (OSError, KeyError, ValueError, tarfile.TarError) as error:
        message = f"oci:{path}: is not an OCI layout of one image: {error}"
        raise UserError(message, "build.py --backend NAME --output oci:PATH makes one", EXIT_DATA) from None


def _manifests(read: Read, digest: str, platform: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (digest, platform, manifest) of each image below a digest, which may be that of an index."""
    content = json.load(read(_blob(digest)))
    if "layers" in content:
        yield digest, platform, content
    for item in content.get("manifests", []):
        has = item.get("platform", {})
        name = "-".join(filter(None, (has.get("os"), has.get("architecture"), has.get("variant"))))
        yield from _manifests(read, item["digest"], name)


def _files(read: Read, manifest: dict[str, Any], wanted: set[str]) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    # The newest layer that has a file has the valid one; ours are the last.
    for layer in reversed(manifest["layers"]):
        if wanted <= files.keys():
            break
        files |= _members(read(_blob(layer["digest"])), wanted - files.keys())
    return files


@contextmanager
def _blobs(path: Path) -> Iterator[Read]:
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
