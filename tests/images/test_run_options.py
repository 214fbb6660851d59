"""Options by which a container gets its devices: those of the spec, as far as the host has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from images.run_options import run_options
from images.specfile import load_specs

SPECS = load_specs()


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host with eleven cards of one backend, seen as files."""
    nodes = ["davinci_manager", "hisi_hdc", "devmm_svm", *(f"davinci{index}" for index in (0, 10, 2))]
    files = [f"dev/{name}" for name in nodes]
    files += ["usr/local/Ascend/driver/lib64/lib.so", "etc/ascend_install.info", "usr/local/sbin/npu-smi"]
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("", encoding="utf-8")
    (tmp_path / "etc/group").write_text("root:x:0:\nHwHiAiUser:x:1001:\n", encoding="utf-8")
    return tmp_path


def test_what_the_host_has_is_passed_on_in_the_order_of_its_cards(host: Path) -> None:
    found = run_options(SPECS["ascend"].runtime, host)
    assert found.options == [
        "--shm-size=16g",
        *(f"--device=/dev/davinci{index}" for index in (0, 2, 10)),
        "--device=/dev/davinci_manager",
        "--device=/dev/hisi_hdc",
        "--device=/dev/devmm_svm",
        "--volume=/usr/local/Ascend/driver/lib64:/usr/local/Ascend/driver/lib64:ro",
        "--volume=/etc/ascend_install.info:/etc/ascend_install.info:ro",
        "--volume=/usr/local/sbin/npu-smi:/usr/local/sbin/npu-smi:ro",
        "--group-add=1001",
    ]


def test_what_the_host_lacks_is_told_unless_it_is_optional(host: Path) -> None:
    assert run_options(SPECS["ascend"].runtime, host).absent == [
        "/usr/local/Ascend/driver/version.info is not on this host"
    ]


@pytest.mark.parametrize("name", sorted(SPECS))
def test_an_empty_host_lacks_all_that_a_spec_names(name: str, tmp_path: Path) -> None:
    runtime = SPECS[name].runtime
    found = run_options(runtime, tmp_path)
    assert found.options == [f"--shm-size={runtime.shm_size}"]
    assert len(found.absent) == len(runtime.devices) + len(runtime.mounts) + len(runtime.groups)
    assert found.vendor == runtime.docker_options


def test_the_group_that_owns_a_node_is_given_whatever_its_name(host: Path) -> None:
    os.chown(host / "dev/davinci2", -1, 1234)
    assert "--group-add=1234" in run_options(SPECS["ascend"].runtime, host).options


def test_a_group_of_this_host_is_given_by_its_number() -> None:
    runtime = SPECS["hygon"].runtime.model_copy(update={"groups": ["root", "no-such-group"]})
    found = run_options(runtime)
    assert "--group-add=0" in found.options
    assert "group no-such-group is not on this host" in found.absent
