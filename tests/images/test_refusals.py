"""A build that cannot end well is refused before an engine is asked, with the cure: none is needed here."""

from __future__ import annotations

import pytest
from build_command import BuildCommand

from images import platforms
from images.build import _check_wheels
from images.errors import EXIT_CONFIG, UserError
from images.lockfile import read_lock
from images.machine import Machine
from images.spec_types import UNRESOLVED
from images.specfile import load_specs

SPECS = load_specs()


@pytest.mark.parametrize("image", [name for name, spec in SPECS.items() if spec.base.digest == UNRESOLVED])
def test_an_unresolved_base_is_refused(build_py: BuildCommand, image: str) -> None:
    spec = SPECS[image]
    done = build_py(*spec.selection.split(), DOCKER_HOST="unix:///nowhere/docker.sock")
    assert (done.returncode, done.stdout) == (EXIT_CONFIG, "")
    assert f"base.digest of {image}: no digest of {spec.base.reference} is known" in done.stderr
    assert (
        f"hint: python build.py lock {spec.selection} --resolve-base, where its registry answers"
        in done.stderr
    )
    assert "--allow-unresolved-base" in done.stderr


def test_an_unresolved_base_is_built_on_only_when_that_is_asked_for(build_py: BuildCommand) -> None:
    """Then the next thing that is missing is told: the engine."""
    for option in ("--allow-unresolved-base", "--base-image=mine:1"):
        done = build_py("--backend=ascend", option, DOCKER_HOST="unix:///nowhere/docker.sock")
        assert done.returncode == 69
        assert "error: engine: no Docker Engine answers" in done.stderr


def test_a_wheel_whose_hash_nobody_has_told_stops_the_build(build_py: BuildCommand) -> None:
    spec = SPECS["cpu"]
    lock = read_lock("cpu")
    assert lock
    older = spec.model_copy(update={"python": spec.python.model_copy(update={"version": "3.10"})})
    with pytest.raises(UserError) as caught:
        _check_wheels(older, lock, [Machine("3.10", "aarch64"), Machine("3.10", "x86_64")])
    assert caught.value.message == "images/locks/cpu: cp310 x86_64: no hash is known of torch 2.13.0+cpu"
    assert caught.value.hint == (
        "python build.py lock --backend cpu, where https://download.pytorch.org/whl/cpu answers, "
        "or with the wheel in a folder: --wheelhouse DIR"
    )
    _check_wheels(older, lock, [Machine("3.10", "aarch64")])
    _check_wheels(spec, lock, [Machine("3.11", "x86_64")])


@pytest.mark.parametrize("image", sorted(SPECS))
def test_every_wheel_of_torch_that_an_image_needs_has_its_hash(image: str) -> None:
    lock = read_lock(image)
    assert lock
    for machine in SPECS[image].architectures:
        _check_wheels(SPECS[image], lock, [Machine(SPECS[image].python.version, machine)])


def test_an_architecture_that_a_variant_has_not_is_refused() -> None:
    with pytest.raises(UserError, match="it is aarch64, cuda is for x86_64"):
        platforms.chosen(SPECS["cuda"], [], ["linux/arm64"])


def test_a_stale_lock_of_a_variant_is_refused_with_its_own_command(tree_build_py: BuildCommand) -> None:
    path = tree_build_py.tree / "images/backends/cuda.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace("13.0.3-base-ubuntu24.04", "13.0.2-base-ubuntu24.04"), encoding="utf-8")
    done = tree_build_py("--backend=cuda", "--variant=cuda13")
    assert done.returncode == EXIT_CONFIG
    assert "error: images/locks/cuda13: stale: " in done.stderr
    assert "hint: python build.py lock --backend cuda --variant cuda13" in done.stderr
    assert tree_build_py("lock", "--backend=cuda", "--check").returncode == 0


def test_all_locks_are_checked_at_once(tree_build_py: BuildCommand) -> None:
    done = tree_build_py("lock", "--check")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, len(SPECS) + 1)
    path = tree_build_py.tree / "images/stack/train.txt"
    path.write_text(path.read_text(encoding="utf-8") + "einops\n", encoding="utf-8")
    done = tree_build_py("lock", "--check")
    assert (done.returncode, done.stdout) == (1, "")
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert [line.split(": ")[1] for line in errors] == [f"images/locks/{image}" for image in SPECS]
    assert "python build.py lock --backend hygon --variant training" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("place", ["/proc/x", "CHANGELOG.md"])
def test_a_folder_that_cannot_be_made_is_told_by_its_place(build_py: BuildCommand, place: str) -> None:
    done = build_py("wheelhouse", "--backend", "cpu", place)
    assert done.returncode == EXIT_CONFIG
    told = done.stderr.splitlines()
    assert len(told) == 2
    assert told[0].startswith(f"error: {place}: ") and told[1].startswith("hint: ")
