"""The committed locks: of this spec, of one Python stack, with every hash, and nothing else."""

from __future__ import annotations

import re
from fnmatch import fnmatch

import pytest
import yaml
from build_command import ROOT

from images import lock, lockfile, pins
from images.pins import parse_requirements
from images.specfile import load_specs

IMAGES = sorted(load_specs())
REQUIREMENTS = ROOT / "images/locks/cpu/requirements.txt"


@pytest.mark.parametrize("image", IMAGES)
def test_the_committed_lock_belongs_to_its_spec(image: str) -> None:
    assert lockfile.lock_status(load_specs()[image])[0] == lockfile.LOCKED


def test_the_tools_lock_belongs_to_its_list() -> None:
    assert "from this list" in lock.check_tools()


def test_there_is_no_lock_of_an_image_that_no_spec_makes() -> None:
    assert {path.parent.name for path in lockfile.LOCKS.glob("*/requirements.txt")} == {*IMAGES, "tools"}


def test_all_images_have_one_python_stack() -> None:
    """What several locks have, they have at one version; torch and its own are each backend's."""
    versions: dict[str, set[str]] = {}
    for image in IMAGES:
        lock = lockfile.read_lock(image)
        assert lock
        for pin in lock.pins:
            versions.setdefault(pin.name, set()).add(pin.version)
    assert sorted(name for name, found in versions.items() if len(found) > 1) == [
        "cuda-bindings",
        "torch",
        "triton",
    ]
    stack = [line.partition("==") for line in lockfile.stack_lines() if "==" in line]
    assert len(stack) > 5
    assert {name: versions[pins.normalise(name)] for name, _, _ in stack} == {
        name: {version} for name, _, version in stack
    }


@pytest.mark.parametrize("image", IMAGES)
def test_no_library_of_another_accelerator_is_in_a_lock(image: str) -> None:
    spec, lock = load_specs()[image], lockfile.read_lock(image)
    assert lock
    refused = [
        pin.name for pin in lock.pins for pattern in spec.refused_packages if fnmatch(pin.name, pattern)
    ]
    assert refused == []
    assert {pin.name for pin in lock.pins} & spec.provided.keys() == set()


def test_each_architecture_gets_the_torch_that_its_plugin_asks_for() -> None:
    lock = lockfile.read_lock("ascend")
    assert lock
    found = {
        pin.marker.partition(" and ")[0]: (pin.version, len(pin.hashes))
        for pin in lock.pins
        if pin.name == "torch"
    }
    assert found == {
        "platform_machine == 'aarch64'": ("2.10.0", 1),
        "platform_machine == 'x86_64'": ("2.10.0+cpu", 1),
    }


def test_torch_is_locked_to_one_file_per_python_and_architecture() -> None:
    """The index has a rebuilt wheel of 2.10.0 beside the first one: only one of them is meant."""
    lock = lockfile.read_lock("cuda")
    assert lock
    (torch,) = [pin for pin in lock.pins if pin.name == "torch"]
    assert torch.hashes == ("98c01b8bb5e3240426dcde1446eed6f40c778091c8544767ef1168fc663a05a6",)


def test_tools_and_cpu_agree_on_every_package_that_both_have() -> None:
    tools = {pin.name: pin.version for pin in parse_requirements(lock.TOOLS.read_text(encoding="utf-8"))}
    cpu = {pin.name: pin.version for pin in parse_requirements(REQUIREMENTS.read_text(encoding="utf-8"))}
    common = tools.keys() & cpu.keys()
    assert len(common) > 5
    assert {name: tools[name] for name in common} == {name: cpu[name] for name in common}


@pytest.mark.parametrize("name", [*IMAGES, "tools"])
def test_a_lock_holds_no_address_no_path_and_no_unhashed_line(name: str) -> None:
    text = (ROOT / "images/locks" / name / "requirements.txt").read_text(encoding="utf-8")
    body = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    assert not re.search(r"://|--index|--find-links|file:|^-|/\w+/", body)
    pins = parse_requirements(text)
    assert len(pins) > 10
    assert all(pin.hashes and pin.version for pin in pins)


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("machine", ["aarch64", "x86_64"])
def test_a_lock_names_one_version_of_each_package(image: str, machine: str) -> None:
    text = (ROOT / "images/locks" / image / "requirements.txt").read_text(encoding="utf-8")
    others = {"aarch64", "x86_64"} - {machine}
    names = [pin.name for pin in parse_requirements(text) if not any(other in pin.marker for other in others)]
    assert len(names) == len(set(names))


def test_lock_yaml_tells_the_source_of_each_hash() -> None:
    data = yaml.safe_load((ROOT / "images/locks/cpu/lock.yaml").read_text(encoding="utf-8"))
    assert {(item["python"], item["architecture"]) for item in data["wheels"]} == {
        (f"cp3{minor}", machine) for minor in (10, 11, 12) for machine in ("x86_64", "aarch64")
    }
    assert all(item["source"] and item["confidence"] in "VPTI" for item in data["wheels"])
