"""What a real engine and its builds refuse, and what the engine finds in rendered files."""

from __future__ import annotations

import subprocess
import sys

import pytest
from build_command import BuildCommand

from images.specfile import load_specs

pytestmark = pytest.mark.engine


def test_a_base_that_cannot_be_had_says_what_to_try(build_options: list[str], build_py: BuildCommand) -> None:
    others = [option for option in build_options if not option.startswith("--base-image")]
    done = build_py(*others, "--base-image=localhost:9/none:1", "--tag=isotune-test:none")
    assert done.returncode == 1
    assert "hint: the base image is out of reach: --base-image REF or --mirror HOST=HOST" in done.stderr


def test_an_unresolved_base_is_refused_before_anything_is_built(tree_build_py: BuildCommand) -> None:
    """With a lock: without one that is the first thing to be told."""
    spec = tree_build_py.tree / "images/backends/cpu.yaml"
    text = spec.read_text(encoding="utf-8")
    digest = next(line for line in text.splitlines() if line.startswith("  digest: "))
    spec.write_text(text.replace(digest, "  digest: unresolved"), encoding="utf-8")
    code = """
import pathlib, yaml
from images import lockfile, specfile
path = pathlib.Path("images/locks/cpu/lock.yaml")
data = yaml.safe_load(path.read_text())
data["spec_checksum"] = lockfile.spec_checksum(specfile.load_specs()["cpu"])
path.write_text(yaml.safe_dump(data))
"""
    subprocess.run([sys.executable, "-c", code], cwd=tree_build_py.tree, check=True)
    done = tree_build_py("--backend=cpu")
    assert done.returncode == 78
    assert "base.digest of cpu: no digest of python:3.11-slim-bookworm is known" in done.stderr
    assert "--allow-unresolved-base" in done.stderr


@pytest.mark.parametrize("name", sorted(load_specs()))
def test_the_engine_finds_no_fault_in_a_rendered_dockerfile(build_options: list[str], name: str) -> None:
    base = next(option for option in build_options if option.startswith("--base-image=")).partition("=")[2]
    command = ["docker", "buildx", "build", "--check", f"--build-arg=BASE_IMAGE={base}"]
    done = subprocess.run(
        [*command, "-f", f"images/rendered/{name}/Dockerfile", "images"],
        cwd=BuildCommand().tree,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
