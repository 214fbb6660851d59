"""The container engine: the only module that knows docker. Builds go by buildx, all else by the SDK."""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from images.errors import EXIT_CHECK_FAILED, EXIT_UNAVAILABLE, UserError
from images.platforms import ARCHITECTURES as PLATFORMS
from images.platforms import read_platforms
from images.progress import Failure, cure, follow

if TYPE_CHECKING:
    import docker

ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True)
class BuildRequest:
    """One `docker buildx build`. Secrets are files by id; none of them reaches a layer."""

    dockerfile: Path
    context: Path
    arguments: dict[str, str]
    metadata: Path
    tags: list[str]
    output: Path | None = None
    named_contexts: dict[str, Path] = field(default_factory=dict)
    secrets: dict[str, Path] = field(default_factory=dict)
    network: str | None = None
    no_cache: bool = False
    platforms: list[str] = field(default_factory=list)


class Engine:
    """A Docker Engine that answers."""

    def __init__(self, client: docker.DockerClient) -> None:
        self.client = client
        self.info: dict[str, Any] = client.info()

    @property
    def architecture(self) -> str:
        """x86_64 or aarch64, whatever the engine calls it."""
        name = self.info.get("Architecture", platform.machine())
        return ARCHITECTURES.get(name, name)

    def platforms(self) -> list[str]:
        """Return what it can build for, such as linux/arm64: its own first, then what it emulates."""
        command = ["docker", "buildx", "inspect"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        own = [name for name, machine in PLATFORMS.items() if machine == self.architecture]
        return list(dict.fromkeys([*own, *read_platforms(done.stdout)]))

    def digest(self, reference: str) -> str | None:
        """Return the digest of an image that the engine has, or None."""
        from docker.errors import ImageNotFound

        try:
            image = self.client.images.get(reference)
        except ImageNotFound:
            return None
        digests = image.attrs.get("RepoDigests") or [f"@{image.id}"]
        return str(digests[0]).rpartition("@")[2]

    def size_bytes(self, reference: str) -> int:
        """Return the size that the engine reports for an image."""
        return int(self.client.images.get(reference).attrs["Size"])

    def read_files(self, reference: str, paths: Iterable[str]) -> dict[str, bytes]:
        """Return path -> content of the files that an image has; nothing of it is run."""
        from docker.errors import NotFound

        container = self.client.containers.create(reference, ["true"])
        found: dict[str, bytes] = {}
        try:
            for path in paths:
                with contextlib.suppress(NotFound):
                    stream, _ = container.get_archive(path)
                    with tarfile.open(fileobj=io.BytesIO(b"".join(stream))) as archive:
                        content = archive.extractfile(Path(path).name)
                        found |= {path: content.read()} if content else {}
        finally:
            container.remove(force=True)
        return found

    def image_architecture(self, reference: str) -> str:
        """Return what an image was built for, as specs call it."""
        name = str(self.client.images.get(reference).attrs["Architecture"])
        return ARCHITECTURES.get(name, name)

    def run(self, options: list[str], command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a container to its end, with options as the command line takes them."""
        line = ["docker", "run", *options, *command]
        return subprocess.run(line, capture_output=True, text=True, errors="replace", check=False)

    def push(self, reference: str) -> None:
        """Push a tag; raises UserError with the registry's own words."""
        for line in self.client.images.push(reference, stream=True, decode=True):
            if "error" in line:
                hint = "docker login, and check the name in --tag"
                raise UserError(f"push: {reference}: {line['error']}", hint, EXIT_CHECK_FAILED)

    def build(self, request: BuildRequest) -> str:
        """Build with progress on stderr; returns the image's digest, raises UserError if it fails."""
        command = _command(request)
        environment = {**os.environ, "BUILDX_NO_DEFAULT_ATTESTATIONS": "1", "NO_COLOR": "1"}
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
        ) as process:
            assert process.stdout
            follower = follow(process.stdout, sys.stderr)
        if process.returncode:
            raise _build_error(follower.failure, list(follower.tail))
        return str(
            json.loads(request.metadata.read_text(encoding="utf-8")).get("containerimage.digest", "unknown")
        )


def connect() -> Engine:
    """Return the engine that DOCKER_HOST names, or the local one; raises UserError (69) if none answers."""
    try:
        import docker
        from docker.errors import DockerException
    except ImportError as error:
        hint = "python3 -m pip install --require-hashes -r images/locks/tools/requirements.txt"
        raise UserError(
            "engine: the Python package `docker` is not installed", hint, EXIT_UNAVAILABLE
        ) from error
    where = os.environ.get("DOCKER_HOST", "its usual socket")
    try:
        client = docker.from_env(timeout=600)
        client.ping()
        engine = Engine(client)
    except (DockerException, OSError) as error:
        raise UserError(f"engine: no Docker Engine answers at {where}", exit_code=EXIT_UNAVAILABLE) from error
    if (
        not shutil.which("docker")
        or subprocess.run(["docker", "buildx", "version"], capture_output=True, check=False).returncode
    ):
        hint = "install Docker's command line with its buildx plugin"
        raise UserError("engine: `docker buildx` is not installed", hint, EXIT_UNAVAILABLE)
    return engine


def registry_digest(reference: str) -> str:
    """Ask a registry for the digest of a tag; raises UserError with its words if there is no answer."""
    if not shutil.which("docker"):
        raise UserError("base: `docker` is not installed", "install Docker's command line", EXIT_UNAVAILABLE)
    # As JSON: some versions answer `{{.Manifest.Digest}}` with a whole page.
    command = ["docker", "buildx", "imagetools", "inspect", "--format", "{{json .Manifest}}", reference]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        found = str(json.loads(done.stdout)["digest"])
    except (ValueError, KeyError, TypeError):
        found = ""
    if done.returncode or not found.startswith("sha256:"):
        words = (done.stderr.strip().splitlines() or ["no digest in the answer"])[-1]
        hint = "give a registry in reach with --mirror HOST=HOST; `docker login` where it asks for it"
        raise UserError(f"base: {reference}: {words}", hint, EXIT_UNAVAILABLE)
    return found


def _command(request: BuildRequest) -> list[str]:
    command = ["docker", "buildx", "build", "--progress=plain", f"--file={request.dockerfile}"]
    command += [f"--metadata-file={request.metadata}"]
    for name, value in request.arguments.items():
        command += ["--build-arg", f"{name}={value}"]
    for name, folder in request.named_contexts.items():
        command += ["--build-context", f"{name}={folder}"]
    for name, file in request.secrets.items():
        command += ["--secret", f"id={name},src={file}"]
    command += [f"--platform={','.join(request.platforms)}"] if request.platforms else []
    command += ["--no-cache"] if request.no_cache else []
    command += [f"--network={request.network}"] if request.network else []
    command += [f"--tag={tag}" for tag in request.tags]
    return [*command, f"--output={_output(request.output)}", str(request.context)]


def _output(path: Path | None) -> str:
    # OCI media types in both cases: an image has one digest, in the engine as in a layout.
    if path is None:
        return "type=docker,oci-mediatypes=true"
    return f"type=oci,dest={path},tar={str(path.suffix == '.tar').lower()}"


def _build_error(failure: Failure | None, tail: list[str]) -> UserError:
    if failure is None:
        return UserError(f"build: {tail[-1] if tail else 'failed'}", cure("\n".join(tail)), EXIT_CHECK_FAILED)
    # The lines come first: the error's own two lines stay the last ones on the screen.
    print("\n".join(f"      | {line}" for line in failure.lines), file=sys.stderr)
    hint = failure.cure or "the lines above are the last ones of that step"
    return UserError(f"build: step `{failure.step}`: {failure.error}", hint, EXIT_CHECK_FAILED)
