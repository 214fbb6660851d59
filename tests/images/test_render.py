"""Rendering: committed files are what the specs say, with nothing of this machine in them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from build_command import ROOT, BuildCommand

from images import render
from images.specfile import BACKENDS, load_specs

NAMES = sorted(load_specs())


def dockerfile(name: str) -> str:
    return (ROOT / "images/rendered" / name / "Dockerfile").read_text(encoding="utf-8")


def test_the_committed_files_are_up_to_date(build_py: BuildCommand) -> None:
    done = build_py("render", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_rendering_does_not_depend_on_the_process() -> None:
    code = (
        "from images import render, specfile\n"
        "files = render.render_all(specfile.load_specs().values())\n"
        "import hashlib; print(hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_check_writes_nothing_shows_the_difference_and_fails(tree_build_py: BuildCommand) -> None:
    path = tree_build_py.tree / "images/rendered/cpu/Dockerfile"
    path.write_text(path.read_text(encoding="utf-8").replace("USER 1000:0", "USER root"), encoding="utf-8")
    extra = path.with_name("leftover.txt")
    extra.write_text("old\n", encoding="utf-8")
    done = tree_build_py("render", "--check")
    assert done.returncode == 1
    assert "-USER root\n+USER 1000:0\n" in done.stdout
    assert "-old" in done.stdout
    assert "hint: python build.py render" in done.stderr
    assert "USER root\nWORKDIR" in path.read_text(encoding="utf-8")
    assert extra.exists()


def test_render_repairs_a_changed_file_and_removes_a_leftover(tree_build_py: BuildCommand) -> None:
    path = tree_build_py.tree / "images/rendered/cpu/Dockerfile"
    path.write_text("old\n", encoding="utf-8")
    path.with_name("leftover.txt").write_text("old\n", encoding="utf-8")
    assert tree_build_py("render").stdout == "rendered 72 files, 2 changed\n"
    assert path.read_text(encoding="utf-8") == dockerfile("cpu")
    assert not path.with_name("leftover.txt").exists()


def test_a_new_spec_alone_makes_a_new_backend(tree_build_py: BuildCommand) -> None:
    """No file but the spec names a backend: a copy under a new name renders and is listed."""
    text = (BACKENDS / "cuda.yaml").read_text(encoding="utf-8")
    text = text.replace("name: cuda", "name: other", 1).replace("aliases: [nvidia]", "aliases: []")
    (tree_build_py.tree / "images/backends/other.yaml").write_text(text, encoding="utf-8")
    assert tree_build_py("render").returncode == 0
    assert (tree_build_py.tree / "images/rendered/other/Dockerfile").exists()
    assert "other " in tree_build_py("list").stdout


@pytest.mark.parametrize("name", NAMES)
def test_a_dockerfile_is_marked_as_rendered_and_needs_no_frontend_from_a_registry(name: str) -> None:
    lines = dockerfile(name).splitlines()
    assert lines[0].startswith("# Rendered by `build.py render`")
    assert not any(re.match(r"#\s*syntax\s*=", line) for line in lines)


@pytest.mark.parametrize("name", NAMES)
def test_the_base_is_pinned_where_its_digest_is_known(name: str) -> None:
    spec = load_specs()[name]
    pinned = "" if spec.base.digest == "unresolved" else f"@{spec.base.digest}"
    assert f"ARG BASE_IMAGE={spec.base.reference}{pinned}\n" in dockerfile(name)


@pytest.mark.parametrize("name", NAMES)
def test_an_image_runs_as_a_plain_user_and_is_verified_without_a_network(name: str) -> None:
    text = dockerfile(name)
    assert text.index("USER 1000:0") < text.index("RUN --network=none") < text.index("train verify --build")
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD" not in text.partition("train verify")[2]
    assert not re.search(r"^ENV.*AUTOLOAD", text, re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_wheels_are_installed_by_hash_alone(name: str) -> None:
    (install,) = re.findall(r"pip install (.*?);", dockerfile(name), re.DOTALL)
    assert {"--require-hashes", "--no-deps", "--only-binary=:all:"} <= set(install.split())


def test_packages_of_the_base_are_frozen_and_compared() -> None:
    text = dockerfile("hygon")
    constraints = (ROOT / "images/rendered/hygon/constraints.txt").read_text(encoding="utf-8")
    assert constraints.splitlines()[1:] == ["torch==2.7.1+das.opt1.dtk2604"]
    assert "--system-site-packages" in text
    assert "PIP_CONSTRAINT=/opt/isotune/constraints.txt" in text
    assert text.count("--provided 'torch==2.7.1+das.opt1.dtk2604'") == 2
    assert "-r /tmp/in/requirements.txt -c /tmp/in/constraints.txt;" in text
    assert "--refused 'nvidia-*' 'cuda-*'" in text
    assert "--system-site-packages" not in dockerfile("cpu")


def test_build_info_carries_what_the_run_side_needs() -> None:
    info = json.loads((ROOT / "images/rendered/ascend/build-info.json").read_text(encoding="utf-8"))
    assert info["schema"] == 1
    assert info["device_policy"]["process_group"] == "hccl"
    assert info["device_policy"]["loss_scale"] == {"dynamic": True, "initial": 65536}
    assert info["plugin"] == {"distribution": "torch-npu", "module": "torch_npu", "version": "2.10.0.post4"}
    assert info["torch"] == {
        "version": "2.10.0",
        "by_architecture": {"x86_64": "2.10.0+cpu"},
        "cuda": None,
        "hip": None,
    }
    assert info["visible_devices_variable"] == "ASCEND_RT_VISIBLE_DEVICES"


def test_what_was_not_published_stays_unknown_in_build_info() -> None:
    info = json.loads((ROOT / "images/rendered/hygon/build-info.json").read_text(encoding="utf-8"))
    assert (info["torch"]["cuda"], info["torch"]["hip"]) == (None, "unknown")
    assert info["import_at_build"] is False


def test_locked_packages_are_in_build_info_with_their_markers() -> None:
    packages = json.loads((ROOT / "images/rendered/cpu/build-info.json").read_text(encoding="utf-8"))[
        "packages"
    ]
    assert packages["torch"] == "2.13.0+cpu"
    assert packages["tomli"]["marker"] == "python_full_version < '3.11'"


def test_values_with_signs_of_the_shell_are_quoted() -> None:
    assert render._quoted('a "b" $c \\d') == '"a \\"b\\" \\$c \\\\d"'


def test_nothing_of_this_machine_is_rendered() -> None:
    for path in (ROOT / "images/rendered").rglob("*"):
        if path.is_file():
            assert str(Path.home()) + "/" not in path.read_text(encoding="utf-8")
            assert str(ROOT) not in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("machine", "files", "asked"),
    [
        ("x86_64", [], True),
        ("x86_64", ["torch-2.10.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"], False),
        ("x86_64", ["torch-2.10.0+cpu-cp311-cp311-manylinux_2_28_aarch64.whl"], True),
        ("aarch64", [], False),
    ],
)
def test_torch_s_own_index_is_asked_only_where_no_other_place_has_it(
    tmp_path: Path, machine: str, files: list[str], asked: bool
) -> None:
    """The step's own condition, in a shell whose machine is named here."""
    text = (render.RENDERED / "ascend" / "Dockerfile").read_text(encoding="utf-8")
    start = text.index("if [ -s /tmp/secrets/pip.conf ]")
    condition = text[start : text.index("fi; \\", start) + 2].replace("/tmp/", f"{tmp_path}/")
    (tmp_path / "wheelhouse").mkdir()
    for name in files:
        (tmp_path / "wheelhouse" / name).touch()
    script = f'uname() {{ echo {machine}; }}\n{condition}\necho "${{PIP_EXTRA_INDEX_URL:-none}}"'
    done = subprocess.run(["sh", "-euc", script], capture_output=True, text=True, check=True)
    assert (done.stdout != "none\n") is asked
