"""Ascend's stack on stand-in bases: the production lock on an emulated aarch64, a newer torch on x86_64.

There is no driver and no CANN here: what verify shows is that the locked stack trains with the plugin hidden.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import yaml
from build_command import ROOT, BuildCommand
from standin import change_spec, docker, keep, require_chosen, states, verified, without

from images.engine import connect

pytestmark = [pytest.mark.engine, pytest.mark.slow]

PLACE = "Debian bookworm with Python 3.11, without CANN or driver; network none, read-only root, uid 12345"
CPU = yaml.safe_load((ROOT / "images/backends/cpu.yaml").read_text(encoding="utf-8"))["torch"]


def test_the_production_lock_trains_on_an_emulated_aarch64(
    build_options: list[str], build_py: BuildCommand
) -> None:
    require_chosen("ascend-aarch64", "emulates another processor, about 10 minutes")
    base, tag = os.environ.get("ISOTUNE_TEST_BASE_ARM64", "isotune-base:arm64"), "isotune-test:ascend-aarch64"
    engine = connect()
    if "linux/arm64" not in engine.platforms():
        pytest.skip("the engine cannot run linux/arm64: register QEMU with its kernel")
    if engine.digest(base) is None:
        pytest.skip(f"the engine has no aarch64 base {base}: set ISOTUNE_TEST_BASE_ARM64")
    options = without(build_options, "--backend", "--base-image", "--wheelhouse")
    done = build_py(
        "--backend=ascend", "--platform=linux/arm64", f"--base-image={base}", f"--tag={tag}", *options
    )
    assert done.returncode == 0, done.stderr
    assert "note: aarch64 is emulated by this x86_64 engine" in done.stderr
    report = verified(tag, "aarch64")
    assert report.status == "passed", report
    found = {check.name: check.detail for check in report.checks}
    # The registry's aarch64 wheel calls itself +cpu.
    assert found["torch"] == "version 2.10.0+cpu, cuda None, hip None"
    keep("ascend", "aarch64", PLACE, report, build_py)
    docker("image", "rm", "-f", tag)


def test_a_newer_torch_with_its_plugin_trains_on_x86_64(
    build_options: list[str], tree_build_py: BuildCommand
) -> None:
    """A test spec: torch 2.13.0+cpu, whose wheel is at hand, and a torch-npu that asks for 2.13.0.*."""
    require_chosen("ascend-x86_64", "builds another full stack, about 6 minutes")
    wheels = [option for option in build_options if option.startswith("--wheelhouse=")]
    if not wheels:
        pytest.skip("there is no folder with the torch wheel: set ISOTUNE_TEST_WHEELHOUSE")
    change_spec(tree_build_py, "ascend", _newer)
    done = tree_build_py("lock", "--backend=ascend", *wheels)
    assert done.returncode == 0, done.stderr
    tag = "isotune-test:ascend-x86_64"
    done = tree_build_py("--backend=ascend", f"--tag={tag}", *without(build_options, "--backend"))
    assert done.returncode == 0, done.stderr
    report = verified(tag)
    assert report.status == "passed", report
    assert set(states(report).values()) == {"passed"}
    plugin = docker(
        "run",
        "--rm",
        "--network=none",
        "--entrypoint=/opt/isotune/bin/python",
        tag,
        "-m",
        "pip",
        "show",
        "torch-npu",
    )
    assert "Version: 2.13.0\n" in plugin.stdout
    place = f"a test spec with torch 2.13.0+cpu and torch-npu 2.13.0, not this backend's lock; {PLACE}"
    keep("ascend", "x86_64", place, report, tree_build_py, below="test-spec")
    docker("image", "rm", "-f", tag)


def _newer(spec: dict[str, Any]) -> None:
    spec.update(architectures=["x86_64"])
    hashes = [item for item in CPU["hashes"] if (item["python"], item["architecture"]) == ("cp311", "x86_64")]
    spec["torch"].update(
        version="2.13.0+cpu", by_architecture={}, requires=CPU["requires"], hashes=hashes, index=CPU["index"]
    )
    spec["plugin"].update(version="2.13.0", hashes=[])
    spec["toolkit"].update(version="9.2.0")
    spec["driver"].update(minimum="25.3", maximum="26.2.RC1", listed=[], refused=[])
