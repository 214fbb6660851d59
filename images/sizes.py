"""What takes an image's space: measured by layer where it was built, else computed from its wheels."""

from __future__ import annotations

import datetime
import re
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from images.errors import EXIT_CONFIG, EXIT_DATA, UserError
from images.evidence import EVIDENCE
from images.layout import blob_of, digest_of, images_of, json_of, titles_of
from images.lockfile import lock_status, require_fresh
from images.machine import Machine
from images.platforms import ARCHITECTURES
from images.spec import BackendSpec
from images.spec_types import Architecture, Part
from images.wheelsizes import download_sizes

SIZES = EVIDENCE / "sizes"
PACKAGE = re.compile(r"/site-packages/(?P<top>[^/]+)/")
SHOWN_PACKAGES = 12
MB = 1e6


class Layer(Part):
    """One layer, by the title of the step that made it."""

    title: str
    compressed_bytes: int
    unpacked_bytes: int
    files: int


class Package(Part):
    """One folder of site-packages, its libraries in a `.libs` folder among it."""

    name: str
    bytes: int
    byte_code_bytes: int


class Sizes(Part):
    """What one image takes on one architecture, and how that is known."""

    image: str
    lock_id: str
    architecture: Architecture
    how: Literal["measured", "computed"]
    place: str = Field(description="on which base it was built, or what the figure leaves out, in words")
    date: str = Field(pattern=r"^\d{4}-\d\d-\d\d$")
    layers: list[Layer] = Field(default=[], description="layers as they were built, the lowest first")
    packages: list[Package] = Field(default=[], description="folders of site-packages, the largest first")
    wheels_bytes: int | None = Field(default=None, description="all wheels as they are downloaded")
    unknown: list[str] = Field(default=[], description="wheels whose size no index in reach tells")

    @property
    def compressed_bytes(self) -> int | None:
        return sum(layer.compressed_bytes for layer in self.layers) if self.layers else self.wheels_bytes


def measure(spec: BackendSpec, layout: Path, place: str) -> list[Sizes]:
    """Return the sizes of each image in an OCI layout that was built from today's lock.

    Raises UserError if it is another image or of another lock.
    """
    lock = require_fresh(spec)
    found = []
    for platform, manifest in images_of(layout, digest_of(layout), ""):
        config = json_of(layout, manifest["config"]["digest"])
        labels = config.get("config", {}).get("Labels") or {}
        if labels.get("isotune.lock-id") != lock.lock_id:
            told = labels.get("isotune.lock-id", "none")
            message = f"{layout}: is of lock {told}, that of {spec.image} is {lock.lock_id}"
            raise UserError(message, f"build.py {spec.selection} --output oci:PATH", EXIT_DATA)
        name = platform or f"linux/{config['architecture']}"
        layers, packages = _layers(layout, manifest, titles_of(config))
        found.append(
            Sizes(
                image=spec.image,
                lock_id=lock.lock_id,
                architecture=_architecture(name),
                how="measured",
                place=place,
                date=datetime.date.today().isoformat(),
                layers=layers,
                packages=packages,
            )
        )
    return found


def compute(spec: BackendSpec, architecture: Architecture) -> Sizes:
    """Return what the wheels of a lock take as they are downloaded; their sizes are asked of uv's index."""
    lock = require_fresh(spec)
    known, unknown = download_sizes(spec, lock, Machine(spec.python.version, architecture))
    return Sizes(
        image=spec.image,
        lock_id=lock.lock_id,
        architecture=architecture,
        how="computed",
        place="wheels as downloaded, without base and byte code, untrimmed",
        date=datetime.date.today().isoformat(),
        wheels_bytes=sum(known.values()),
        unknown=unknown,
        packages=[
            Package(name=name, bytes=size, byte_code_bytes=0)
            for name, size in sorted(known.items(), key=lambda item: -item[1])[:SHOWN_PACKAGES]
        ],
    )


def compute_unmeasured(spec: BackendSpec, folder: Path = SIZES) -> list[Sizes]:
    """Return the computed sizes of each architecture whose image was not measured with today's lock."""
    lock = require_fresh(spec)
    known = [item for item in read_sizes(spec, folder) if item.how == "measured"]
    measured = [item.architecture for item in known if item.lock_id == lock.lock_id]
    return [compute(spec, machine) for machine in spec.architectures if machine not in measured]


def write_sizes(sizes: Sizes, folder: Path = SIZES) -> Path:
    """Write one record; a later one of the same image and architecture replaces it."""
    path = folder / f"{sizes.image}-{sizes.architecture}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(sizes.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return path


def read_sizes(spec: BackendSpec, folder: Path = SIZES) -> list[Sizes]:
    """Return the records of an image, one per architecture that has one; UserError if one is broken."""
    found = []
    for architecture in spec.architectures:
        path = folder / f"{spec.image}-{architecture}.json"
        if not path.exists():
            continue
        try:
            found.append(TypeAdapter(Sizes).validate_json(path.read_bytes()))
        except (ValidationError, OSError) as error:
            message = f"{path}: not a record of sizes: {str(error).splitlines()[0]}"
            raise UserError(
                message, "git checkout images/evidence/sizes, or make it anew", EXIT_CONFIG
            ) from error
    return found


def table(specs: Iterable[BackendSpec]) -> str:
    """Return one line per image and architecture; `unknown` where there is no record."""
    lines = [("IMAGE", "ARCHITECTURE", "COMPRESSED", "UNPACKED", "HOW")]
    for spec in specs:
        _, lock = lock_status(spec)
        records = {sizes.architecture: sizes for sizes in read_sizes(spec)}
        for architecture in spec.architectures:
            sizes = records.get(architecture)
            lines.append((spec.image, architecture, *_summary(sizes, lock.lock_id if lock else "")))
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "\n".join("  ".join([*map(str.ljust, line, widths), line[4]]) for line in lines)


def details(sizes: Sizes) -> str:
    """Return the layers of one image and the largest packages in them, in lines."""
    told = f"{sizes.how} on {sizes.date}: {sizes.place}"
    lines = [f"{sizes.image}, {sizes.architecture}, lock {sizes.lock_id}: {told}"]
    lines += [f"  {'layer':<40} {'compressed':>12} {'unpacked':>12} {'files':>8}"] if sizes.layers else []
    for layer in [*sizes.layers, *([_sum(sizes.layers)] if sizes.layers else [])]:
        figures = f"{_mb(layer.compressed_bytes):>12} {_mb(layer.unpacked_bytes):>12} {layer.files:>8}"
        lines.append(f"  {layer.title:<40} {figures}")
    whole, code = (sum(getattr(p, name) for p in sizes.packages) for name in ("bytes", "byte_code_bytes"))
    if sizes.layers:
        lines.append(f"  site-packages: {_mb(whole)}, of which byte code {_mb(code)}")
    for package in sizes.packages[:SHOWN_PACKAGES]:
        lines.append(f"  {package.name:<40} {'':>12} {_mb(package.bytes):>12}")
    return "\n".join([*lines, *(f"  not counted, its size is unknown: {name}" for name in sizes.unknown)])


def _layers(layout: Path, manifest: dict[str, Any], titles: list[str]) -> tuple[list[Layer], list[Package]]:
    layers, sizes, code = [], Counter[str](), Counter[str]()
    for number, item in enumerate(manifest["layers"]):
        unpacked = files = 0
        for path, size in _files(blob_of(layout, item["digest"])):
            unpacked, files = unpacked + size, files + 1
            if match := PACKAGE.search(f"/{path}"):
                name = (
                    "metadata" if match["top"].endswith(".dist-info") else match["top"].removesuffix(".libs")
                )
                sizes[name] += size
                code[name] += size if path.endswith(".pyc") else 0
        # A base's own steps have no title of ours; after the first titled one, WORKDIR makes a layer.
        other = "other" if any(titles[:number]) else "base image"
        title = titles[number] if number < len(titles) and titles[number] else other
        layers.append(Layer(title=title, compressed_bytes=item["size"], unpacked_bytes=unpacked, files=files))
    packages = [Package(name=n, bytes=size, byte_code_bytes=code[n]) for n, size in sizes.most_common()]
    return layers, packages


def _files(blob: Path) -> Iterator[tuple[str, int]]:
    try:
        with tarfile.open(blob, "r|*") as layer:
            yield from ((member.name, member.size) for member in layer if member.isreg())
    except tarfile.ReadError as error:
        message = f"{blob}: its compression is not read here"
        raise UserError(message, "build it with gzip, the engine's default", EXIT_DATA) from error


def _architecture(platform: str) -> Architecture:
    return TypeAdapter(Architecture).validate_python(
        ARCHITECTURES.get("/".join(platform.split("/")[:2]), platform)
    )


def _summary(sizes: Sizes | None, lock_id: str) -> tuple[str, str, str]:
    if sizes is None:
        return "unknown", "unknown", "-"
    older = "" if sizes.lock_id == lock_id else " (of an older lock)"
    lacking = f", without {', '.join(sizes.unknown)}" if sizes.unknown else ""
    unpacked = _mb(_sum(sizes.layers).unpacked_bytes) if sizes.layers else "unknown"
    return _mb(sizes.compressed_bytes or 0), unpacked, f"{sizes.how}{older}: {sizes.place}{lacking}"


def _sum(layers: list[Layer]) -> Layer:
    names = ("compressed_bytes", "unpacked_bytes", "files")
    return Layer(title="all", **{name: sum(getattr(layer, name) for layer in layers) for name in names})


def _mb(size: int) -> str:
    return f"{size / MB:,.1f} MB"
