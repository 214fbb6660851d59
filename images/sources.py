"""Where a build gets things from: wheels, indexes, mirrors, certificates. None of it may reach a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from images.errors import EXIT_USAGE, UserError
from images.spec import BackendSpec
from images.spec_types import UNRESOLVED


@dataclass(frozen=True)
class Sources:
    """`mirrors` maps a host to the host, or host and path, that is asked instead."""

    wheelhouse: Path | None = None
    index_url: str | None = None
    extra_index_urls: list[str] = field(default_factory=list)
    mirrors: dict[str, str] = field(default_factory=dict)
    ca_bundle: Path | None = None
    # Without a network: pip would ask the index again and again before it looks into the wheelhouse.
    no_index: bool = False

    def secrets(self, spec: BackendSpec, folder: Path, architectures: Sequence[str] = ()) -> dict[str, Path]:
        """Return build secrets by id; what is written for them goes below `folder`."""
        secrets = {}
        if self.ca_bundle:
            secrets["ca"] = self.ca_bundle
        settings = self.pip_settings(spec, architectures)
        if settings:
            secrets["pip"] = folder / "pip.conf"
            secrets["pip"].write_text(settings, encoding="utf-8")
            secrets["pip"].chmod(0o600)
        archive = spec.system_packages.archive if spec.system_packages else ""
        if spec.system_packages and mirrored(archive, self.mirrors) != archive:
            secrets["apt"] = folder / "apt.list"
            lines = spec.system_packages.source_lines(mirrored(archive, self.mirrors))
            secrets["apt"].write_text("\n".join(lines) + "\n", encoding="utf-8")
            secrets["apt"].chmod(0o600)
        return secrets

    def pip_settings(self, spec: BackendSpec, architectures: Sequence[str] = ()) -> str:
        """Return a pip.conf with the addresses, or nothing if pip's own default is all that is needed.

        architectures: what is built, else all of the spec's. pip asks all indexes for each package:
        one that none of them needs is left out, for where it cannot be reached pip waits minutes.
        """
        if self.no_index:
            return "[global]\nno-index = true\n"
        extra = [mirrored(url, self.mirrors) for url in self.extra_index_urls]
        if spec.torch.index and not self._has_torch(spec, architectures or spec.architectures):
            extra.append(mirrored(spec.torch.index, self.mirrors))
        if not self.index_url and not extra:
            return ""
        lines = ["[global]"]
        if self.index_url:
            lines.append(f"index-url = {mirrored(self.index_url, self.mirrors)}")
        if extra:
            lines.append("extra-index-url =")
            lines += [f"    {url}" for url in extra]
        return "\n".join(lines) + "\n"

    def _has_torch(self, spec: BackendSpec, architectures: Sequence[str]) -> bool:
        """Is each wheel that only the spec's own index has, for one of these, in the wheelhouse?"""
        wanted = spec.torch_versions().items()
        local = [version for version, own in wanted if "+" in version and set(own) & set(architectures)]
        folder = self.wheelhouse
        return not local or (
            folder is not None and all(any(folder.glob(f"torch-{version}-*.whl")) for version in local)
        )


def check_sources(sources: Sources) -> None:
    """Raise UserError with every path that is not what it should be."""
    faults = []
    if sources.wheelhouse and not any(sources.wheelhouse.glob("*.whl")):
        faults.append(f"--wheelhouse: no wheel in {sources.wheelhouse}")
    if sources.ca_bundle:
        try:
            found = "BEGIN CERTIFICATE" in sources.ca_bundle.read_text(encoding="utf-8", errors="replace")
        except OSError:
            found = False
        if not found:
            faults.append(f"--ca-bundle: no certificate in {sources.ca_bundle}")
    if faults:
        raise UserError("\n".join(faults), "give a folder of *.whl files, a PEM file", EXIT_USAGE)


def parse_mirrors(pairs: list[str]) -> dict[str, str]:
    """Parse HOST=HOST[/PATH] pairs; raises UserError with every pair that is not one."""
    wrong = [pair for pair in pairs if "=" not in pair or "://" in pair or not all(pair.partition("=")[::2])]
    if wrong:
        message = "\n".join(f"--mirror: {pair!r} is not HOST=HOST" for pair in wrong)
        raise UserError(message, "such as --mirror docker.io=mirror.example.org", EXIT_USAGE)
    return {pair.partition("=")[0]: pair.partition("=")[2].rstrip("/") for pair in pairs}


def mirrored(url: str, mirrors: dict[str, str]) -> str:
    """Return a URL with its host replaced by its mirror."""
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("/")
    return f"{scheme}://{mirrors.get(host, host)}{slash}{path}"


def base_address(spec: BackendSpec, override: str | None, mirrors: dict[str, str]) -> str:
    """Return the address to pull the base image from: pinned by digest, its registry replaced by its mirror.

    An override is taken as given: it may be an image that only this engine has.
    """
    if override:
        return override
    reference = spec.base.reference
    first, slash, rest = reference.partition("/")
    # As the engine reads names: a first part without a dot, colon or `localhost` belongs to docker.io.
    if not slash:
        host, path = "docker.io", f"library/{reference}"
    elif "." in first or ":" in first or first == "localhost":
        host, path = first, rest
    else:
        host, path = "docker.io", reference
    address = f"{mirrors[host]}/{path}" if host in mirrors else reference
    return address if spec.base.digest == UNRESOLVED else f"{address}@{spec.base.digest}"
