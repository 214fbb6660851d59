"""`build.py doctor`: the host's side, on fake roots, with and without an engine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from build_command import ROOT

from images import doctor
from images.specfile import load_specs

NOWHERE = "unix:///nowhere/docker.sock"


def run(*arguments: Any, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "build.py", "doctor", *map(str, arguments)]
    variables = {**os.environ, "DOCKER_HOST": NOWHERE, **environment}
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=variables)


@pytest.mark.parametrize("image", ["ascend", "cuda", "hygon"])
def test_an_empty_host_lacks_everything_and_the_engine_and_exits_with_69(tmp_path: Path, image: str) -> None:
    done = run("--backend", image, "--root", tmp_path, "--json")
    report = json.loads(done.stdout)
    assert done.returncode == report["exit_code"] == 69, done.stderr
    assert report["where"] == "host"
    spec = load_specs()[image]
    missing = {one["name"] for one in report["seen"] if one["status"] == "missing"}
    nodes = {*spec.runtime.devices, *spec.runtime.injected_devices}
    sources = {mount.split(":")[0] for mount in spec.runtime.mounts}
    libraries = {library.name for library in spec.runtime.libraries}
    assert missing == {"Docker Engine", *nodes, *sources, *libraries}


def test_the_line_names_this_host_s_cards_and_groups(tmp_path: Path) -> None:
    for path in ("davinci3", "davinci_manager", "hisi_hdc"):
        (tmp_path / "dev").mkdir(exist_ok=True)
        (tmp_path / "dev" / path).touch()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/group").write_text("HwHiAiUser:x:1017:\n", encoding="utf-8")
    done = run("--backend", "cann", "--root", tmp_path)
    assert "    --device=/dev/davinci3 \\\n" in done.stdout
    assert "    --group-add=1017 \\\n" in done.stdout
    assert "davinci0" not in done.stdout


def test_a_node_that_a_group_opens_is_no_fault_of_the_host(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/kfd").touch()
    os.chown(tmp_path / "dev/kfd", -1, os.getgid())
    (tmp_path / "dev/kfd").chmod(0o660)
    report = json.loads(run("--backend", "hygon", "--root", tmp_path, "--json").stdout)
    (kfd,) = (one for one in report["seen"] if one["name"] == "/dev/kfd")
    assert kfd["status"] == "present"
    if os.getgid():  # group 0 is every image user's own
        assert f"--group-add={os.getgid()} opens it" in kfd["detail"]
        assert f"--group-add={os.getgid()}" in report["docker_options"]


def test_cdi_files_of_the_host_are_read_and_damaged_ones_left(tmp_path: Path) -> None:
    folder = tmp_path / "etc/cdi"
    folder.mkdir(parents=True)
    (folder / "gpu.yaml").write_text("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n", encoding="utf-8")
    (folder / "hcu.json").write_text('{"kind": "hygon.com/hcu"}', encoding="utf-8")
    (folder / "broken.yaml").write_text("kind: [", encoding="utf-8")
    (folder / "list.yaml").write_text("- 1\n", encoding="utf-8")
    (folder / "notes.txt").write_text("kind: other/thing\n", encoding="utf-8")
    assert doctor.cdi_kinds(tmp_path) == ["hygon.com/hcu", "nvidia.com/gpu"]
    # Without an engine that reads them they help nobody.
    found = json.loads(run("--backend", "cuda", "--root", tmp_path, "--json").stdout)
    assert found["docker_options"][0] == "--gpus=all"


@pytest.mark.parametrize(
    ("info", "host", "kinds"),
    [
        ({"CDISpecDirs": ["/etc/cdi"]}, "unix:///run/docker.sock", ["nvidia.com/gpu"]),
        ({"CDISpecDirs": []}, "unix:///run/docker.sock", []),
        ({}, "unix:///run/docker.sock", []),
        ({"CDISpecDirs": ["/etc/cdi"]}, "ssh://elsewhere", []),
    ],
)
def test_cdi_counts_where_the_engine_of_this_host_reads_it(
    monkeypatch: pytest.MonkeyPatch, info: dict[str, Any], host: str, kinds: list[str]
) -> None:
    engine = SimpleNamespace(info=info, architecture="x86_64", digest=lambda reference: None)
    monkeypatch.setattr("images.engine.connect", lambda: engine)
    monkeypatch.setenv("DOCKER_HOST", host)
    seen, _, found = doctor.look_at_engine(load_specs()["cuda"], ["nvidia.com/gpu"])
    assert found == kinds
    support = next(one for one in seen if one["name"].startswith(("nvidia", "nvidia.com")))
    assert (support["status"] == "present") is bool(kinds)


def test_an_engine_without_support_is_a_fault_only_where_no_node_can_be_named() -> None:
    specs = load_specs()
    cuda = doctor._support(specs["cuda"], ["runc"])
    assert (cuda["status"], cuda["needed"]) == ("missing", True)
    assert "nvidia-container-toolkit" in cuda["cure"]
    ascend = doctor._support(specs["ascend"], ["runc"])
    assert (ascend["status"], ascend["needed"]) == ("note", False)
    assert doctor._support(specs["ascend"], ["runc", "ascend"])["status"] == "present"
    assert doctor._support(specs["cpu"], ["runc"]) == {}


def test_a_reader_that_closes_early_gets_no_traceback(tmp_path: Path) -> None:
    shell = f"{sys.executable} build.py doctor --backend cpu --root {tmp_path} | head -1"
    done = subprocess.run(["bash", "-c", shell], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("doctor (cpu, host): ")
    assert "Traceback" not in done.stderr


def test_without_a_backend_it_is_a_usage_error() -> None:
    assert run().returncode == 64


@pytest.mark.engine
def test_an_engine_is_told_with_its_version_disk_and_image(tmp_path: Path) -> None:
    if "DOCKER_HOST" not in os.environ:
        pytest.skip("DOCKER_HOST names no engine")
    done = run("--backend", "cpu", "--json", DOCKER_HOST=os.environ["DOCKER_HOST"])
    seen = {one["name"]: one["status"] for one in json.loads(done.stdout)["seen"]}
    assert seen["Docker Engine"] == seen["docker buildx"] == "present"
    assert {"disk", "isotune:cpu"} <= set(seen)
    assert done.returncode == 0
