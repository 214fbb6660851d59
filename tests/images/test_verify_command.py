"""`build.py verify` and `build.py inventory` on images of a real engine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from build_command import ROOT, BuildCommand, Image
from cyclonedx_schema import fault_of

from images.evidence import read_evidence

pytestmark = pytest.mark.engine

CHECK = {"part": "build", "name": "versions", "status": "passed", "seconds": 0.1, "detail": "58 packages"}
REPORT = {"isotune": "0.1.0", "backend": "cuda", "status": "passed", "passed": 1, "failed": 0, "skipped": 0}


@pytest.fixture
def derived(cpu_image: Image, tmp_path: Path) -> Iterator[Callable[..., str]]:
    """An image whose `train` prints what a test gives it, with the build-info of another spec."""
    made: list[str] = []

    def build(name: str, output: str, code: int = 0) -> str:
        folder = tmp_path / "image" / name
        folder.mkdir(parents=True)
        reference = f"isotune-test:derived-{name}"
        (folder / "train").write_text(
            f"#!/bin/sh\ncat <<'END'\n{output}\nEND\nexit {code}\n", encoding="utf-8"
        )
        (folder / "train").chmod(0o755)
        rendered = ROOT / f"images/rendered/{name}/build-info.json"
        (folder / "build-info.json").write_text(rendered.read_text(encoding="utf-8"), encoding="utf-8")
        copies = "COPY train /opt/isotune/bin/train\nCOPY build-info.json /opt/isotune/build-info.json\n"
        (folder / "Dockerfile").write_text(f"FROM {cpu_image.reference}\n{copies}", encoding="utf-8")
        subprocess.run(["docker", "buildx", "build", "--quiet", f"--tag={reference}", folder], check=True)
        made.append(reference)
        return reference

    yield build
    for reference in made:
        subprocess.run(["docker", "image", "rm", "-f", reference], capture_output=True, check=False)


def report(**changes: Any) -> str:
    return json.dumps({**REPORT, "checks": [CHECK], **changes})


def test_an_image_verifies_itself_on_this_host_and_its_report_is_kept(
    cpu_image: Image, tmp_path: Path, build_py: BuildCommand
) -> None:
    done = build_py("verify", "--backend=cpu", cpu_image.reference, f"--evidence={tmp_path}")
    assert done.returncode == 0, done.stderr
    (kept,) = read_evidence("cpu", tmp_path)
    assert kept.verify.failed == 0
    assert {check.status for check in kept.verify.checks if check.part == "device"} == {"skipped"}
    assert {check.status for check in kept.verify.checks if check.part == "build"} == {"passed"}
    assert kept.base == "stand-in"
    assert "network none, read-only root" in kept.place
    assert done.stdout.splitlines()[-1] == f"evidence: {tmp_path}/cpu/stand-in-{kept.architecture}.json"


def test_a_host_without_the_devices_still_gets_its_report_and_what_it_lacks(
    derived: Callable[..., str], tmp_path: Path, build_py: BuildCommand
) -> None:
    """An engine that has not the vendor's runtime refuses the option, which is told and left out."""
    reference = derived("cuda", report())
    done = build_py("verify", "--backend=cuda", reference, f"--evidence={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert "note: without --gpus=all: " in done.stderr
    (kept,) = read_evidence("cuda", tmp_path)
    assert "without --gpus=all: " in kept.place


def test_a_failed_check_is_kept_and_ends_with_1(
    derived: Callable[..., str], tmp_path: Path, build_py: BuildCommand
) -> None:
    failed = {**CHECK, "status": "failed", "detail": "torch 1, the lock says 2"}
    reference = derived("ascend", report(status="failed", passed=0, failed=1, checks=[failed]), 1)
    done = build_py("verify", "--backend=ascend", reference, f"--evidence={tmp_path}")
    assert done.returncode == 1
    assert f"error: {reference}: build: versions: torch 1, the lock says 2" in done.stderr
    assert "note: device /dev/davinciN is not on this host" in done.stderr
    (kept,) = read_evidence("ascend", tmp_path)
    assert kept.verify.failed == 1


def test_an_image_that_gives_no_report_leaves_no_evidence(
    derived: Callable[..., str], tmp_path: Path, build_py: BuildCommand
) -> None:
    reference = derived("hygon", "no report", 70)
    done = build_py("verify", "--backend=hygon", reference, f"--evidence={tmp_path / 'evidence'}")
    assert done.returncode == 1
    assert "ended with 70 and without a report" in done.stderr
    assert not (tmp_path / "evidence").exists()


def test_an_image_of_another_backend_or_none_at_all_is_refused(
    cpu_image: Image, tmp_path: Path, build_py: BuildCommand
) -> None:
    done = build_py("verify", "--backend=hygon", cpu_image.reference, f"--evidence={tmp_path}")
    assert done.returncode == 65
    assert f"{cpu_image.reference}: is an image of cpu, not of hygon" in done.stderr
    done = build_py("verify", "--backend=cpu", "isotune-test:none", f"--evidence={tmp_path}")
    assert done.returncode == 64
    assert "isotune-test:none: the engine has no such image" in done.stderr
    done = build_py("verify", "--backend=cpu", "oci:layout", f"--evidence={tmp_path}")
    assert "oci:layout: only an engine runs an image" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_image_s_inventory_is_the_same_from_the_engine_and_beside_a_layout(
    cpu_image: Image, tmp_path: Path, build_py: BuildCommand
) -> None:
    done = build_py("inventory", "--backend=cpu", cpu_image.reference, f"--output={tmp_path / 'engine'}")
    assert done.returncode == 0, done.stderr
    done = cpu_image.build_again(f"--output=oci:{tmp_path / 'image.tar'}")
    assert done.returncode == 0, done.stderr
    beside = tmp_path / "image.tar.inventory"
    for name in ("sbom.cdx.json", "licences.txt"):
        assert (beside / name).read_bytes() == (tmp_path / "engine" / name).read_bytes()
    texts = [(folder / "provenance.json").read_text("utf-8") for folder in (beside, tmp_path / "engine")]
    subjects = [json.loads(text)["subject"][0]["digest"]["sha256"] for text in texts]
    assert subjects == [cpu_image.digest.partition(":")[2]] * 2


def test_the_inventory_of_an_image_has_every_package_that_is_in_it(
    cpu_image: Image, tmp_path: Path, build_py: BuildCommand
) -> None:
    done = build_py("inventory", "--backend=cpu", cpu_image.reference, f"--output={tmp_path}")
    assert done.returncode == 0, done.stderr
    sbom = json.loads((tmp_path / "sbom.cdx.json").read_text(encoding="utf-8"))
    purls = {one["purl"].partition("?")[0] for one in sbom["components"] if "purl" in one}
    listed = cpu_image.run("python", "-m", "pip", "list", "--format=json").stdout
    python = {f"pkg:pypi/{one['name'].lower().replace('_', '-')}" for one in json.loads(listed)}
    assert python == {purl.partition("@")[0] for purl in purls if purl.startswith("pkg:pypi/")}
    dpkg = cpu_image.run("dpkg-query", "--show", "--showformat=${Package}\n").stdout.split()
    assert {f"pkg:deb/debian/{name}" for name in dpkg} == {
        purl.partition("@")[0] for purl in purls if purl.startswith("pkg:deb/")
    }
    assert fault_of(json.dumps(sbom)) is None
