"""The host part of `train verify --device`: passed, failed with the cure, or skipped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from fake_roots import RENDERED, WITH_DEVICE, build_info_of, fake_root, whole_host

from train.checks.host.root import Root
from train.checks.host.verified import driver_is_in_range, host_checks, nodes_are_open
from train.checks.report import CheckFailed, Skipped

PROC = "/proc/driver/nvidia/version"


@pytest.mark.parametrize("image", WITH_DEVICE)
def test_without_hardware_both_are_skipped(tmp_path: Path, image: str) -> None:
    checks = dict(host_checks(build_info_of(image), Root(tmp_path)))
    assert list(checks) == ["nodes and groups", "driver in range"]
    for check in checks.values():
        with pytest.raises(Skipped, match="no device: none of /dev/"):
            check()


@pytest.mark.parametrize("image", WITH_DEVICE)
def test_a_whole_container_passes_its_nodes(tmp_path: Path, image: str) -> None:
    root = fake_root(tmp_path, whole_host(image))
    assert "are there and open" in nodes_are_open(build_info_of(image), root)


def test_half_a_container_fails_with_each_thing_and_its_cure(tmp_path: Path) -> None:
    files = whole_host("ascend")
    del files["/dev/davinci_manager"], files["/etc/ascend_install.info"]
    with pytest.raises(CheckFailed) as caught:
        nodes_are_open(build_info_of("ascend"), fake_root(tmp_path, files))
    assert str(caught.value) == (
        "device /dev/davinci_manager missing: --device=/dev/davinci_manager; mount /etc/ascend_install.info "
        "missing: -v /etc/ascend_install.info:/etc/ascend_install.info:ro"
    )


@pytest.mark.parametrize(
    ("version", "outcome"), [("580.65.06", "passed"), ("570.124.06", CheckFailed), ("", Skipped)]
)
def test_a_driver_passes_fails_or_is_skipped_as_unknown(
    tmp_path: Path, version: str, outcome: object
) -> None:
    text = f"NVRM version: x Kernel Module  {version}  x\n"
    root = fake_root(tmp_path, {**whole_host("cuda13"), PROC: text})
    if isinstance(outcome, str):
        assert driver_is_in_range(build_info_of("cuda13"), root).startswith(
            "580.65.06: in the range 580 or newer"
        )
        return
    assert isinstance(outcome, type)
    with pytest.raises(outcome) as caught:
        driver_is_in_range(build_info_of("cuda13"), root)
    assert ("unknown" if outcome is Skipped else "older than 580") in str(caught.value)


def test_a_build_info_of_before_is_skipped_with_the_cure(tmp_path: Path) -> None:
    image = build_info_of("cuda")
    old = {name: value for name, value in image.content.items() if name != "driver"}
    with pytest.raises(Skipped, match="says nothing of its host.*rebuild the image"):
        driver_is_in_range(replace(image, content=old), Root(tmp_path))


def test_the_cpu_and_an_environment_without_build_info_are_skipped(tmp_path: Path) -> None:
    for image in (build_info_of("cpu"), None):
        for _, check in host_checks(image, Root(tmp_path)):
            with pytest.raises(Skipped):
                check()
    assert (RENDERED / "cpu").is_dir()
