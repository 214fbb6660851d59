"""What the tests of images/ share: specs to damage, a copy of the tree, one image per session."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from build_command import ROOT, BuildCommand, Image

from images.specfile import BACKENDS

SECRET = "isotune-test-secret-5f1c"


@pytest.fixture
def damaged(tmp_path: Path) -> Callable[..., Path]:
    """Copy a real spec with replacements made in its text; every replacement must apply."""

    def copy(*changes: tuple[str, str], name: str = "cpu") -> Path:
        text = (BACKENDS / f"{name}.yaml").read_text(encoding="utf-8")
        for old, new in changes:
            assert old in text, f"{old!r} is not in {name}.yaml any more"
            text = text.replace(old, new, 1)
        path = tmp_path / f"{name}.yaml"
        path.write_text(text, encoding="utf-8")
        return path

    return copy


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what build.py works on, to change at will."""
    return copy_tree(tmp_path / "tree")


def copy_tree(folder: Path) -> Path:
    """Copy what build.py works on."""
    folder.mkdir()
    for name in ("build.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    for name in ("compose", "images", "train"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def build_py() -> BuildCommand:
    """build.py of this checkout."""
    return BuildCommand()


@pytest.fixture
def tree_build_py(tree: Path) -> BuildCommand:
    """build.py of the copied tree."""
    return BuildCommand(tree)


@pytest.fixture(scope="session")
def build_options(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options of a cpu build on this host; skipped, with the reason, where something is missing."""
    from images.engine import connect
    from images.errors import UserError

    try:
        engine = connect()
    except UserError as error:
        pytest.skip(str(error))
    base = os.environ.get("ISOTUNE_TEST_BASE", "isotune-base:cpu")
    if engine.digest(base) is None:
        pytest.skip(f"the engine has no base image {base}: set ISOTUNE_TEST_BASE")
    folder = tmp_path_factory.mktemp("build")
    options = [
        "--backend=cpu",
        f"--base-image={_without_byte_code(base, folder)}",
        "--network=host",
        f"--index-url={_index_with_secret()}",
    ]
    authority = os.environ.get("SSL_CERT_FILE", "")
    if authority and Path(authority).exists():
        bundle = folder / "ca.pem"
        bundle.write_text(f"# {SECRET}\n{Path(authority).read_text(encoding='utf-8')}", encoding="utf-8")
        options.append(f"--ca-bundle={bundle}")
    wheelhouse = _wheelhouse()
    return [*options, f"--wheelhouse={wheelhouse}"] if wheelhouse else options


@pytest.fixture(scope="session")
def proxied(build_options: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Docker's command line passes a proxy's settings on to every build, as behind a corporate proxy.

    Only an exception from the proxy, so that what the builds fetch still goes the usual way.
    """
    usual = Path(os.environ.get("DOCKER_CONFIG", Path.home() / ".docker"))
    folder = tmp_path_factory.mktemp("docker")
    config = usual / "config.json"
    settings = json.loads(config.read_text(encoding="utf-8")) if config.exists() else {}
    settings["proxies"] = {"default": {"noProxy": f"{SECRET}.example.org"}}
    (folder / "config.json").write_text(json.dumps(settings), encoding="utf-8")
    if (usual / "cli-plugins").exists():
        (folder / "cli-plugins").symlink_to(usual / "cli-plugins")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DOCKER_CONFIG", str(folder))
        yield


@pytest.fixture(scope="session")
def cpu_image(
    build_options: list[str], proxied: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Image]:
    """The cpu image, built once; ISOTUNE_TEST_TAG keeps it under that name afterwards.

    From a copy: an edit made while the tests run must not look like a build that differs from itself.
    """
    kept = os.environ.get("ISOTUNE_TEST_TAG")
    tag = kept or "isotune-test:cpu"
    build = BuildCommand(copy_tree(tmp_path_factory.mktemp("frozen") / "tree"))
    done = build(*build_options, f"--tag={tag}")
    assert done.returncode == 0, done.stderr
    yield Image(tag, done.stdout.strip(), done.stderr, build, [*build_options, f"--tag={tag}"])
    if not kept:
        subprocess.run(["docker", "image", "rm", "-f", tag], capture_output=True, check=False)


def _without_byte_code(base: str, folder: Path) -> str:
    """The same base without byte code of the standard library: the named one has none."""
    tag = "isotune-test:base"
    bare = "RUN find /usr/lib/python3* /usr/local/lib/python3* -name __pycache__ -prune -exec rm -rf {} +"
    (folder / "Dockerfile").write_text(f"FROM {base}\n{bare} || :\n", encoding="utf-8")
    command = [
        "docker",
        "buildx",
        "build",
        "--network=none",
        f"--tag={tag}",
        "--output=type=docker",
        str(folder),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return tag


def _index_with_secret() -> str:
    """pip's own default index, asked with credentials that must not be found in the image."""
    found = subprocess.run(
        [sys.executable, "-c", "from pip._internal.models.index import PyPI; print(PyPI.simple_url)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return found.stdout.strip().replace("://", f"://user:{SECRET}@")


def _wheelhouse() -> str | None:
    """A folder with the torch wheel: from the environment, else where pip is told to find links."""
    named = os.environ.get("ISOTUNE_TEST_WHEELHOUSE")
    if named:
        return named
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    lines = [
        line.partition("=")[2]
        for line in listed.stdout.splitlines()
        if "find-links" in line.partition("=")[0]
    ]
    folders = [Path(word) for line in lines for word in line.strip("'\"").replace("\\n", " ").split()]
    return next((str(folder) for folder in folders if any(folder.glob("torch-*.whl"))), None)
