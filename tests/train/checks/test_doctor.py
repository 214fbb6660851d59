"""`train doctor` as its users call it: report, JSON and exit code on empty, whole and half roots."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_roots import (
    IMAGES,
    OUTPUTS,
    RENDERED,
    STRANGER,
    WITH_DEVICE,
    fake_root,
    needs_of,
    put_tool,
    whole_host,
)

from train.checks.doctor import doctor
from train.checks.host.examine import examine
from train.checks.host.finding import FAILED, MISSING, UNKNOWN
from train.checks.host.root import Root
from train.errors import UserError
from train.image import VARIABLE

Command = Callable[..., "subprocess.CompletedProcess[str]"]
VERSIONS = {"ascend": "25.5.2", "hygon": "6.3.30-V1.4.1a", "cuda": "580.65.06"}


def versioned(image: str, version: str) -> dict[str, str]:
    """The file from which a driver's version is read."""
    texts = {
        "ascend": ("/usr/local/Ascend/driver/version.info", f"Version={version}\n"),
        "hygon": ("/opt/hyhal/version", f"rock-{version}\n"),
        "cuda": (
            "/proc/driver/nvidia/version",
            f"NVRM version: x Kernel Module  {version}  x\n",
        ),
    }
    path, text = texts[needs_of(image).backend]
    return {path: text}


@pytest.mark.parametrize("image", WITH_DEVICE)
def test_on_an_empty_root_everything_that_is_missing_is_named_and_the_exit_code_is_69(
    tmp_path: Path, image: str
) -> None:
    needs = needs_of(image)
    report = examine(needs, Root(tmp_path))
    missing = {one.name for one in report.seen if one.status == MISSING}
    mounts = {mount.split(":")[0] for mount in needs.runtime["mounts"]}
    libraries = {library["name"] for library in needs.runtime["libraries"]}
    assert missing == {*needs.nodes, *mounts, *libraries}
    assert [one.status for one in report.seen if one.kind == "driver"] == [UNKNOWN]
    assert report.exit_code == 69


@pytest.mark.parametrize("image", WITH_DEVICE)
def test_a_whole_container_is_good(tmp_path: Path, image: str) -> None:
    files = {**whole_host(image), **versioned(image, VERSIONS[needs_of(image).backend])}
    report = examine(needs_of(image), fake_root(tmp_path, files))
    assert report.exit_code == 0, report.lines()


@pytest.mark.parametrize(
    ("image", "version"), [("ascend", "25.0.1"), ("hygon", "6.3.16-V1.1.0a"), ("cuda13", "570.124.06")]
)
def test_a_driver_out_of_range_is_a_failed_check(tmp_path: Path, image: str, version: str) -> None:
    report = examine(needs_of(image), fake_root(tmp_path, {**whole_host(image), **versioned(image, version)}))
    assert [one.name for one in report.seen if one.status == FAILED] == [version]
    assert report.exit_code == 1


def test_a_missing_node_weighs_more_than_a_failed_check(tmp_path: Path) -> None:
    files = {**whole_host("hygon"), **versioned("hygon", "6.3.16-V1.1.0a")}
    del files["/dev/kfd"]
    assert examine(needs_of("hygon"), fake_root(tmp_path, files)).exit_code == 69


def test_an_unknown_driver_is_told_and_is_no_fault(tmp_path: Path) -> None:
    report = examine(needs_of("cuda"), fake_root(tmp_path, whole_host("cuda")))
    assert report.exit_code == 0
    assert any(line.startswith("unknown       driver version") for line in report.lines())


def test_what_the_tool_says_of_itself_is_explained(tmp_path: Path) -> None:
    root = fake_root(tmp_path, {**whole_host("ascend"), **versioned("ascend", "25.5.2")})
    put_tool(tmp_path, "npu-smi", f"tail -n +2 '{OUTPUTS}/npu-smi-in-use.txt'; exit 1")
    report = examine(needs_of("ascend"), root)
    (failed,) = (one for one in report.seen if one.status == FAILED)
    assert "another container holds one of the cards" in failed.detail
    assert "--device=/dev/davinciN" in failed.cure
    assert report.exit_code == 1


def test_on_the_cpu_it_says_what_there_is(tmp_path: Path) -> None:
    files = {**whole_host("cpu"), "/proc/meminfo": "MemTotal: 1048576 kB\n"}
    report = examine(needs_of("cpu"), fake_root(tmp_path, files))
    assert report.exit_code == 0
    text = "\n".join(report.lines())
    assert "limit memory: 1 GiB" in text
    assert "shared memory: 16 GiB" in text
    assert "this backend has none" in text


def test_the_command_prints_the_report_and_exits_with_its_code(
    tmp_path: Path, train_command: Command
) -> None:
    build = str(RENDERED / "hygon" / "build-info.json")
    done = train_command("doctor", "--root", tmp_path, ISOTUNE_BUILD_INFO=build)
    assert done.returncode == 69
    assert done.stdout.startswith("doctor (hygon, container): 4 missing")
    assert "missing       device /dev/kfd\n              -> --device=/dev/kfd\n" in done.stdout
    assert "  docker run --rm \\\n    --device=/dev/kfd \\\n" in done.stdout
    assert done.stderr == ""


def test_json_holds_the_same_for_programs(tmp_path: Path, train_command: Command) -> None:
    build = str(RENDERED / "cuda" / "build-info.json")
    done = train_command("doctor", "--json", "--root", tmp_path, ISOTUNE_BUILD_INFO=build)
    report = json.loads(done.stdout)
    assert done.returncode == report["exit_code"] == 69
    assert report["docker_options"] == ["--gpus=all", "--shm-size=16g"]
    assert {"kind", "name", "status", "detail", "cure", "needed"} == set(report["seen"][0])


def test_without_a_build_info_nothing_is_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(UserError, match="doctor: there is no build-info.json") as caught:
        doctor(tmp_path)
    assert caught.value.exit_code == 78


def test_a_build_info_of_before_is_refused_with_the_cure(tmp_path: Path, train_command: Command) -> None:
    content = json.loads((RENDERED / "cpu" / "build-info.json").read_text(encoding="utf-8"))
    del content["driver"]
    old = tmp_path / "old.json"
    old.write_text(json.dumps(content), encoding="utf-8")
    done = train_command("doctor", ISOTUNE_BUILD_INFO=str(old))
    assert done.returncode == 78
    assert "says nothing of its host: 'driver' is missing" in done.stderr
    assert "hint: rebuild the image" in done.stderr


def test_every_image_is_looked_at_by_these_tests() -> None:
    assert IMAGES == ["ascend", "ascend-a3", "cpu", "cuda", "cuda13", "hygon", "hygon-training"]
    assert STRANGER.uid != 0
