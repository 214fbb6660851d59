"""Drivers: read from files and outputs of known forms, judged by each range; unknown stays unknown."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_roots import fake_root, needs_of, output_of

from train.checks.host.driver import begins, judge, look_at_driver, read_driver
from train.checks.host.finding import FAILED, NOTE, PASSED, UNKNOWN
from train.checks.host.root import Root

VERSION_INFO = "/usr/local/Ascend/driver/version.info"
PROC = "/proc/driver/nvidia/version"


@pytest.mark.parametrize(
    ("image", "files", "tools", "version"),
    [
        ("ascend", {VERSION_INFO: "version-info-25.3.rc1"}, {}, "25.3.rc1"),
        ("ascend", {VERSION_INFO: "version-info-component"}, {}, "26.0.rc1"),
        ("ascend", {}, {"npu_smi": "npu-smi-23.0.0-910b3"}, "23.0.0"),
        ("ascend-a3", {}, {"npu_smi": "npu-smi-26.0.rc2-a3"}, "26.0.rc2"),
        ("hygon", {}, {"hy_smi": "hy-smi-driver"}, "6.3.27-V1.2.5"),
        ("cuda", {PROC: "proc-driver-nvidia-535"}, {}, "535.129.03"),
        ("cuda", {PROC: "proc-driver-nvidia-580-open"}, {}, "580.173.02"),
    ],
)
def test_the_version_is_read_where_the_spec_says(
    tmp_path: Path, image: str, files: dict[str, str], tools: dict[str, str], version: str
) -> None:
    texts = {path: output_of(name) for path, name in files.items()}
    assert read_driver(needs_of(image), fake_root(tmp_path, texts, **tools)).version == version


def test_the_second_source_is_asked_where_the_first_tells_nothing(tmp_path: Path) -> None:
    files = {PROC: output_of("proc-driver-nvidia-535")}
    root = fake_root(tmp_path, files, nvidia_smi="nvidia-smi-mismatch")
    found = read_driver(needs_of("cuda"), root)
    assert (found.version, found.where) == ("535.129.03", PROC)


@pytest.mark.parametrize(
    "text", ["rock-6.3.30-V1.4.1a\n", "driver 6.3.30-V1.4.1a (2026)\n", "6.3.30-V1.4.1a"]
)
def test_a_version_file_of_unknown_form_is_read_by_the_form_of_the_version(tmp_path: Path, text: str) -> None:
    root = fake_root(tmp_path, {"/opt/hyhal/version": text})
    assert read_driver(needs_of("hygon"), root).version == "6.3.30-V1.4.1a"


@pytest.mark.parametrize(
    ("image", "version", "status"),
    [
        ("ascend", "25.2.0", PASSED),
        ("ascend", "25.2.rc1", PASSED),
        ("ascend", "25.5.2", PASSED),
        ("ascend", "26.0.RC1", PASSED),
        ("ascend", "26.0.rc2", PASSED),
        ("ascend", "26.1.0", PASSED),
        ("ascend", "26.1.1", FAILED),
        ("ascend", "26.2.RC1", FAILED),
        ("ascend", "25.0.rc1.2", FAILED),
        ("ascend", "24.1.rc2.2", FAILED),
        ("ascend", "25.20.0", PASSED),
        ("hygon", "6.3.30-V1.4.1a", PASSED),
        ("hygon", "6.3.30-V1.4.1", FAILED),
        ("hygon", "6.3.30-V1.5.0", PASSED),
        ("hygon", "6.3.27-V1.2.5", FAILED),
        ("hygon-training", "6.4.1-V1.0.0", PASSED),
        ("cuda", "525.60.13", PASSED),
        ("cuda", "525.60.11", FAILED),
        ("cuda", "470.256.02", FAILED),
        ("cuda13", "580.65.06", PASSED),
        ("cuda13", "575.57.08", FAILED),
        ("cuda13", "595.71.05", PASSED),
    ],
)
def test_a_version_is_judged_by_the_range_of_its_image(image: str, version: str, status: str) -> None:
    assert judge(needs_of(image), version)[0] == status


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("26.1.0.b010", PASSED),
        ("26.1.rc1", PASSED),
        ("26.1.0.1", PASSED),
        ("26.1.1", FAILED),
        ("25.1.9", FAILED),
        ("27.0.1", PASSED),
        ("27.1.0", FAILED),
    ],
)
def test_ends_of_a_range_hold_their_own_parts_and_a_named_version_may_lie_outside(
    version: str, status: str
) -> None:
    needs = needs_of("ascend")
    needs.driver["listed"] = ["27.0"]
    assert judge(needs, version)[0] == status


def test_the_judgement_names_the_range_and_what_the_vendor_says() -> None:
    words = judge(needs_of("ascend"), "25.0.1")[1]
    assert words == "the vendor names 25.0 as not compatible; needed: 25.2 to 26.1.0, not 25.0"
    assert "older than 580; needed: 580 or newer" in judge(needs_of("cuda13"), "570.124.06")[1]


def test_a_name_stands_for_its_parts_and_not_for_its_digits() -> None:
    assert begins("25.2.0", "25.2")
    assert not begins("25.20", "25.2")
    assert not begins("25", "25.2")


@pytest.mark.parametrize("text", ["", "Version=\n", "what?\n", "Version=none\n"])
def test_a_driver_that_cannot_be_read_is_unknown_and_never_passed(tmp_path: Path, text: str) -> None:
    needs = needs_of("ascend")
    found = read_driver(needs, fake_root(tmp_path, {VERSION_INFO: text}))
    seen = look_at_driver(needs, found)
    assert seen.status == UNKNOWN
    assert "needed: 25.2 to 26.1.0" in seen.detail


def test_a_range_that_the_matrix_does_not_know_is_unknown() -> None:
    needs = needs_of("cuda")
    needs.driver["minimum"] = "unknown"
    assert judge(needs, "580.65.06")[0] == UNKNOWN


def test_a_backend_without_a_driver_says_so(tmp_path: Path) -> None:
    needs = needs_of("cpu")
    seen = look_at_driver(needs, read_driver(needs, Root(tmp_path)))
    assert (seen.status, seen.needed) == (NOTE, False)
