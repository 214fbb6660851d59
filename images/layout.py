"""Compare two OCI layouts file by file: which layer, which path, and what of it differs."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from images.errors import EXIT_DATA, UserError

TITLE = re.compile(r": '([^']+)'")
KINDS = {
    tarfile.REGTYPE: "file",
    tarfile.AREGTYPE: "file",
    tarfile.DIRTYPE: "folder",
    tarfile.SYMTYPE: "symbolic link",
    tarfile.LNKTYPE: "hard link",
}


@dataclass(frozen=True)
class Difference:
    """One thing that differs: `where` is a layer or the configuration, `path` a file or key in it."""

    where: str
    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.path}: {self.what}" if self.path else f"{self.where}: {self.what}"


@dataclass(frozen=True)
class Entry:
    """What a layer says about one path."""

    kind: str
    mode: str
    owner: str
    mtime: str
    link: str
    attributes: str
    content: str
    size_bytes: int


def digest_of(layout: Path) -> str:
    """Return the digest of a layout's one image; raises UserError if the folder is no such layout."""
    try:
        index = json.loads((layout / "index.json").read_text(encoding="utf-8"))
        # One entry for each name that the image was given.
        (digest,) = {manifest["digest"] for manifest in index["manifests"]}
        return str(digest)
    except (OSError, KeyError, ValueError) as error:
        message = f"{layout}: is not an OCI layout of one image"
        raise UserError(message, "build.py --backend NAME --output oci:PATH makes one", EXIT_DATA) from error


def compare(first: Path, second: Path) -> Iterator[Difference]:
    """Yield every difference of two layouts' images, of each platform that they have."""
    images = [dict(images_of(layout, digest_of(layout), "")) for layout in (first, second)]
    for platform in sorted({*images[0], *images[1]}):
        place = f"{platform} " if len(images[0]) + len(images[1]) > 2 else ""
        if platform not in images[0] or platform not in images[1]:
            yield Difference(f"platform {platform}", "", _only(platform in images[0]))
            continue
        yield from _compare_images(first, second, images[0][platform], images[1][platform], place)


def images_of(layout: Path, digest: str, platform: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield platform -> image manifest below a digest, which may be that of an index."""
    content = json_of(layout, digest)
    if "layers" in content:
        yield platform, content
    for item in content.get("manifests", []):
        has = item.get("platform", {})
        name = "/".join(filter(None, (has.get("os"), has.get("architecture"), has.get("variant"))))
        yield from images_of(layout, item["digest"], name)


def _compare_images(
    first: Path, second: Path, one: dict[str, Any], two: dict[str, Any], place: str
) -> Iterator[Difference]:
    configs = [json_of(layout, item["config"]["digest"]) for layout, item in ((first, one), (second, two))]
    for path, what in _compare_values("", configs[0], configs[1]):
        # The identity of the layers follows from their files, which are compared below.
        if not path.startswith("rootfs.diff_ids"):
            yield Difference(f"{place}configuration", path, what)
    titles = titles_of(configs[0])
    for number, (left, right) in enumerate(zip_longest(one["layers"], two["layers"])):
        title = f" ({titles[number]})" if number < len(titles) and titles[number] else ""
        where = f"{place}layer {number + 1}{title}"
        if left is None or right is None:
            yield Difference(where, "", _only(left is not None))
        elif left["digest"] != right["digest"]:
            yield from _compare_layers(
                where, blob_of(first, left["digest"]), blob_of(second, right["digest"])
            )


def titles_of(config: dict[str, Any]) -> list[str]:
    """Return what each layer is, by the step that made it."""
    steps = [item.get("created_by", "") for item in config.get("history", []) if not item.get("empty_layer")]
    return [match[1] if (match := TITLE.search(step)) else "" for step in steps]


def _compare_layers(where: str, first: Path, second: Path) -> Iterator[Difference]:
    try:
        one, two = _entries(first), _entries(second)
    except tarfile.ReadError:
        yield Difference(where, "", "differs; its compression is not read here")
        return
    count = 0
    for path in sorted({*one, *two}):
        if path not in one or path not in two:
            count += 1
            yield Difference(where, path, _only(path in one))
            continue
        for what in _compare_entries(one[path], two[path]):
            count += 1
            yield Difference(where, path, what)
    if not count:
        same = list(one) == list(two)
        yield Difference(where, "", "same files, packed otherwise" if same else "same files in another order")


def _entries(blob: Path) -> dict[str, Entry]:
    entries = {}
    with tarfile.open(blob, "r:*") as layer:
        for member in layer:
            entries[member.name] = Entry(
                KINDS.get(member.type, f"type {member.type!r}"),
                f"{member.mode:04o}",
                f"{member.uid}:{member.gid}",
                # With its fraction, which stands in a PAX header.
                f"{member.mtime:f}".rstrip("0").rstrip("."),
                member.linkname,
                str(sorted((k, v) for k, v in member.pax_headers.items() if k.startswith("SCHILY.xattr."))),
                _content(layer, member),
                member.size,
            )
    return entries


def _content(layer: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    stream = layer.extractfile(member) if member.isreg() else None
    digest = hashlib.sha256()
    while stream and (block := stream.read(1 << 20)):
        digest.update(block)
    return digest.hexdigest()


def _compare_entries(one: Entry, two: Entry) -> Iterator[str]:
    for name, said in (("kind", "type"), ("mode",) * 2, ("owner",) * 2, ("mtime",) * 2, ("link",) * 2):
        left, right = getattr(one, name), getattr(two, name)
        if left != right:
            yield f"{said}: {left}, {right}"
    if one.attributes != two.attributes:
        yield f"extended attributes: {one.attributes}, {two.attributes}"
    if one.content != two.content:
        yield f"content: {one.size_bytes} bytes, {two.size_bytes} bytes"


def _compare_values(path: str, one: Any, two: Any) -> Iterator[tuple[str, str]]:
    """Yield (key path, what differs) of two JSON values."""
    if isinstance(one, dict) and isinstance(two, dict):
        for key in sorted({*one, *two}):
            yield from _compare_values(f"{path}.{key}".lstrip("."), one.get(key), two.get(key))
    elif isinstance(one, list) and isinstance(two, list):
        for number, pair in enumerate(zip_longest(one, two)):
            yield from _compare_values(f"{path}[{number}]", *pair)
    elif one != two:
        yield path, f"{json.dumps(one)}, {json.dumps(two)}"


def _only(in_first: bool) -> str:
    return f"only in the {'first' if in_first else 'second'}"


def json_of(layout: Path, digest: str) -> dict[str, Any]:
    """Return a blob of a layout that is JSON: an index, a manifest or a configuration."""
    return json.loads(blob_of(layout, digest).read_text(encoding="utf-8"))


def blob_of(layout: Path, digest: str) -> Path:
    """Return where a blob of a layout lies."""
    return layout / "blobs" / digest.replace(":", "/")
