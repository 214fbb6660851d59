"""The model of `backends/<name>.yaml`: everything that differs between backends, as data.

What is not known is `unresolved` (a digest or hash) or `unknown` (a version): never invented.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from images.spec_host import DevicePolicy, Driver, KnownError, Runtime, Telemetry
from images.spec_types import (
    AbsolutePath,
    Architecture,
    Confidence,
    Digest,
    EnvName,
    Name,
    PackageVersion,
    Part,
    PythonTag,
    PythonVersion,
    ScratchFolder,
    Sha256,
    Url,
    VariantName,
    Version,
)

IMAGES = Path(__file__).resolve().parent
ROOT = IMAGES.parent


class PublishedDigest(Part):
    digest: Digest
    source: str = Field(description="where this digest was read")
    confidence: Confidence


class Base(Part):
    reference: str = Field(pattern=r"^[^@\s]+:[^@\s/]+$", description="image:tag, without a digest")
    digest: Digest
    source: str = Field(description="where the digest was read, or where it was sought")
    confidence: Confidence
    others: list[PublishedDigest] = Field(default=[], description="other digests published for the same tag")


class Python(Part):
    executable: str = Field(description="path or name of the base image's Python")
    version: PythonVersion
    covers: list[PythonVersion] = Field(min_length=1, description="the Python versions the lock is valid for")

    @model_validator(mode="after")
    def version_is_covered(self) -> Python:
        if self.version not in self.covers:
            raise ValueError(f"covers {self.covers} lacks the image's own version {self.version!r}")
        return self


class WheelHash(Part):
    python: PythonTag
    architecture: Architecture
    sha256: Sha256
    source: str = Field(description="where this hash was read")
    confidence: Confidence


class TorchBuild(Part):
    cuda: str = Field(description="torch.version.cuda: a version in quotes, `none` or `unknown`")
    hip: str = Field(description="torch.version.hip: a version in quotes, `none` or `unknown`")


class Torch(Part):
    version: Version
    by_architecture: dict[Architecture, Version] = Field(
        default={}, description="versions that differ from `version`, per architecture"
    )
    provided: bool = Field(default=False, description="true when the base image brings torch itself")
    index: Url | None = Field(
        default=None, description="the index that has this build, if not the default one"
    )
    requires: list[str] = Field(default=[], description="the wheel's own requirements, when `index` is set")
    hashes: list[WheelHash] = Field(default=[], description="known hashes of its wheels")
    build: TorchBuild


class Plugin(Part):
    distribution: Name
    module: str = Field(description="the name it is imported by")
    version: Version
    hashes: list[WheelHash] = Field(default=[], description="known hashes of its wheels")


class SystemPackages(Part):
    """Packages that the base lacks, from its distribution's archive as it was at one moment."""

    archive: str = Field(
        pattern=r"^https?://\S*/\d{8}T\d{6}Z/?$",
        description="the address of a dated snapshot, ending in a moment such as 20260928T000000Z",
    )
    suites: list[Name] = Field(min_length=1, description="suites of the archive, such as noble-updates")
    components: list[Name] = Field(min_length=1, description="components of the archive, such as main")
    keyring: AbsolutePath = Field(description="the keys in the base image that sign the archive")
    versions: dict[str, PackageVersion] = Field(min_length=1, description="package to its exact version")

    def source_lines(self, archive: str | None = None) -> list[str]:
        """Return the lines of a sources.list, perhaps with a mirror's address of the archive."""
        # An old moment's Release file has expired by its own word: its date is the point here.
        options = f"[signed-by={self.keyring} check-valid-until=no]"
        where = archive or self.archive
        return [f"deb {options} {where} {suite} {' '.join(self.components)}" for suite in self.suites]


class Toolkit(Part):
    """The vendor's software that the base image brings, as far as versions of torch depend on it."""

    name: Name
    version: Version


class Activation(Part):
    """One environment script: the first path that exists is sourced by the entrypoint."""

    first_of: list[AbsolutePath] = Field(min_length=1, description="paths, the first that exists is used")
    arguments: list[str] = Field(default=[])


class BackendSpec(Part):
    """One backend. A vendor's need is a new field here, never a branch on a name."""

    name: Name
    title: str
    aliases: list[Name] = Field(default=[])
    variant: VariantName | None = Field(
        default=None, description="the name of this variant, where a backend has several"
    )
    default_variant: VariantName | None = Field(
        default=None, description="the variant that the main part of the file is"
    )
    base: Base
    python: Python
    architectures: list[Architecture] = Field(min_length=1)
    torch: Torch
    plugin: Plugin | None = None
    toolkit: Toolkit | None = Field(default=None, description="the vendor's software in the base image")
    packages: list[str] = Field(
        default=[], description="Python packages that the toolkit needs beyond the shared stack"
    )
    provided: dict[str, Version] = Field(
        default={}, description="packages the base image brings: name to version"
    )
    refused_packages: list[str] = Field(
        default=[],
        description="patterns of packages that would mean another torch was installed over this one",
    )
    import_at_build: bool = Field(description="can torch be imported without the driver?")
    import_note: str = Field(default="", description="why not, or under which condition")
    system_packages: SystemPackages | None = Field(
        default=None, description="packages of the base's distribution to add"
    )
    removed_paths: list[AbsolutePath] = Field(
        default=[], description="what of the base does harm and is taken out; may hold the shell's patterns"
    )
    environment: dict[EnvName, str] = Field(default={})
    scratch_folders: dict[EnvName, ScratchFolder] = Field(
        default={},
        description="variable that names a folder, made before a start -> its place below the scratch folder",
    )
    activate: list[Activation] = Field(default=[])
    runtime: Runtime
    driver: Driver
    telemetry: Telemetry = Field(default=Telemetry(), description="the tools that tell of power and heat")
    errors: list[KnownError] = Field(default=[], description="known errors of the vendor's libraries")
    device_policy: DevicePolicy
    sources: dict[str, str] = Field(description="key path to the source of its value, with its confidence")

    @model_validator(mode="after")
    def provided_torch_is_listed(self) -> BackendSpec:
        listed = self.provided.get("torch")
        if self.torch.provided and listed != self.torch.version:
            raise ValueError(
                f"torch is provided: `provided` must list torch {self.torch.version!r}, not {listed!r}"
            )
        return self

    @property
    def is_default(self) -> bool:
        """Is this what the backend's name alone means?"""
        return self.variant == self.default_variant

    @property
    def image(self) -> str:
        """The name of its image, lock folder and rendered folder: backend, or backend-variant.

        The default variant has its backend's name; one that begins with that name is not prefixed again.
        """
        if self.is_default or self.variant is None:
            return self.name
        return self.variant if self.variant.startswith(self.name) else f"{self.name}-{self.variant}"

    @property
    def selection(self) -> str:
        """The options that choose it on the command line."""
        own = "" if self.is_default else f" --variant {self.variant}"
        return f"--backend {self.name}{own}"

    def lock_inputs(self) -> dict[str, Any]:
        """Return the part of the spec that a lock depends on: a change here makes the lock stale."""
        data = self.model_dump(
            include={"name", "base", "python", "architectures", "torch", "plugin", "provided"}
        )
        data["base"] = {key: data["base"][key] for key in ("reference", "digest")}
        data |= {"packages": self.packages} if self.packages else {}
        data |= {} if self.is_default else {"variant": self.variant}
        return data

    def indexed_architectures(self) -> list[Architecture]:
        """Return the architectures whose torch is on the index of the spec alone."""
        found = [arch for version, archs in self.torch_versions().items() if "+" in version for arch in archs]
        return sorted(found) if self.torch.index else []

    def torch_versions(self) -> dict[str, list[Architecture]]:
        """Return torch's version -> the architectures that use it."""
        versions: dict[str, list[Architecture]] = {}
        for architecture in self.architectures:
            version = self.torch.by_architecture.get(architecture, self.torch.version)
            versions.setdefault(version, []).append(architecture)
        return versions


def checksum(data: Any) -> str:
    """Return `sha256:<hex>` of `data` as canonical JSON."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
