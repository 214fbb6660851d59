"""A real registry on this host: push, pull by digest, and `lock --resolve-base` asks it.

Needs the program of Debian's package docker-registry.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from build_command import BuildCommand, Image

from images.engine import connect, registry_digest
from images.errors import UserError
from images.specfile import read_spec

pytestmark = [pytest.mark.engine, pytest.mark.slow]

CONFIG = """
version: 0.1
storage:
  filesystem:
    rootdirectory: {folder}
http:
  addr: 127.0.0.1:{port}
"""
TAG = "python:3.11-slim-bookworm"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a registry that lives as long as these tests."""
    program = shutil.which("docker-registry")
    if not program:
        pytest.skip("there is no docker-registry here: apt-get install docker-registry")
    folder = tmp_path_factory.mktemp("registry")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    (folder / "config.yml").write_text(CONFIG.format(folder=folder, port=port), encoding="utf-8")
    log = (folder / "log").open("wb")
    with log, subprocess.Popen([program, "serve", folder / "config.yml"], stdout=log, stderr=log) as process:
        try:
            _wait(f"http://127.0.0.1:{port}/v2/", process)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()


def _wait(address: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(100):
        assert process.poll() is None, "the registry ended at once"
        try:
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(address).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise AssertionError(f"no registry answers at {address}")


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def pushed(build_options: list[str], registry: str, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """A small image as the registry has it: name and digest; the engine keeps no tag of it."""
    name = f"{registry}/library/{TAG}"
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\n", encoding="utf-8")
    docker("buildx", "build", "--quiet", f"--tag={name}", "--output=type=docker", str(tmp_path))
    engine = connect()
    engine.push(name)
    digest = str(engine.client.images.get(name).attrs["Descriptor"]["digest"])
    docker("image", "rm", "-f", name)
    yield name, digest
    subprocess.run(["docker", "image", "rm", "-f", name], capture_output=True, check=False)


def unresolve(build: BuildCommand) -> Path:
    """Take the digest out of the cpu spec; returns the spec's file."""
    path = build.tree / "images/backends/cpu.yaml"
    text = path.read_text(encoding="utf-8")
    digest = next(line for line in text.splitlines() if line.startswith("  digest: "))
    path.write_text(text.replace(digest, "  digest: unresolved"), encoding="utf-8")
    return path


def resolve(build: BuildCommand, registry: str) -> subprocess.CompletedProcess[str]:
    """As far as the spec: no index answers behind it, so the lock itself is left as it is."""
    options = ["--backend=cpu", "--resolve-base", f"--mirror=docker.io={registry}"]
    return build("lock", *options, "--index-url=http://127.0.0.1:9/simple")


def test_what_was_pushed_is_pulled_by_its_digest(pushed: tuple[str, str]) -> None:
    name, digest = pushed
    assert registry_digest(name) == digest
    by_digest = f"{name.rpartition(':')[0]}@{digest}"
    docker("pull", "--quiet", by_digest)
    assert connect().digest(by_digest) == digest
    docker("image", "rm", "-f", by_digest)


def test_a_registry_s_answer_is_written_into_the_spec(
    pushed: tuple[str, str], registry: str, tree_build_py: BuildCommand
) -> None:
    path = unresolve(tree_build_py)
    resolve(tree_build_py, registry)
    (spec,), faults = read_spec(path)
    assert faults == []
    assert (spec.base.digest, spec.base.confidence) == (pushed[1], "P")
    # With the digest filled in, the next call compares.
    assert resolve(tree_build_py, registry).returncode != 65
    assert path.read_text(encoding="utf-8").count(pushed[1]) == 1


def test_a_tag_that_was_pushed_anew_is_refused(
    pushed: tuple[str, str], registry: str, tree_build_py: BuildCommand
) -> None:
    before = (tree_build_py.tree / "images/backends/cpu.yaml").read_text(encoding="utf-8")
    done = resolve(tree_build_py, registry)
    assert done.returncode == 65
    assert f"the registry has {pushed[1]} as {registry}/library/{TAG}, the spec sha256:" in done.stderr
    assert (tree_build_py.tree / "images/backends/cpu.yaml").read_text(encoding="utf-8") == before


def test_a_tag_that_the_registry_has_not_is_told_with_its_words(registry: str) -> None:
    with pytest.raises(UserError, match=f"base: {registry}/none:1: .*not found") as caught:
        registry_digest(f"{registry}/none:1")
    assert caught.value.exit_code == 69


def test_a_push_that_a_registry_refuses_is_told(build_options: list[str]) -> None:
    base = next(option for option in build_options if option.startswith("--base-image=")).partition("=")[2]
    docker("image", "tag", base, "127.0.0.1:9/none:1")
    try:
        with pytest.raises(UserError, match=r"push: 127\.0\.0\.1:9/none:1: ") as caught:
            connect().push("127.0.0.1:9/none:1")
        assert "docker login" in caught.value.hint
    finally:
        docker("image", "rm", "-f", "127.0.0.1:9/none:1")


def test_a_build_pushes_and_anybody_pulls_it_by_the_digest_that_was_printed(
    cpu_image: Image, registry: str
) -> None:
    options = [option for option in cpu_image.options if not option.startswith("--tag=")]
    name = f"{registry}/isotune:cpu"
    done = cpu_image.build(*options, f"--tag={name}", "--push")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == cpu_image.digest
    assert f"pushed {name}" in done.stderr
    docker("image", "rm", "-f", name)
    by_digest = f"{registry}/isotune@{cpu_image.digest}"
    try:
        docker("pull", "--quiet", by_digest)
        labels = json.loads(docker("image", "inspect", "--format={{json .Config.Labels}}", by_digest))
        assert labels["isotune.backend"] == "cpu"
    finally:
        subprocess.run(["docker", "image", "rm", "-f", by_digest, name], capture_output=True, check=False)
