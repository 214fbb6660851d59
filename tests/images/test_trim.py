"""What a build takes out of its wheels: exactly what the patterns name, with a list that verify knows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from build_command import ROOT, BuildCommand, Image

from images.layout import digest_of, images_of
from images.trim import Rule, read_rules, rule_of, trim

RULES = read_rules(ROOT / "images/trim.json")


def install(prefix: Path, names: list[str]) -> Path:
    """Put a wheel's files and their RECORD into an environment; returns its site-packages."""
    site = prefix / "lib/python3.11/site-packages"
    record = site / "brick-1.0.dist-info/RECORD"
    for name in [*names, "brick-1.0.dist-info/METADATA"]:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text("clay\n", encoding="utf-8")
    lines = [f"{name},sha256=x,5\n" for name in [*names, "brick-1.0.dist-info/METADATA"]]
    record.write_text("".join([*lines, "brick-1.0.dist-info/RECORD,,\n"]), encoding="utf-8")
    return site


def test_what_a_pattern_names_goes_with_its_empty_folders_and_all_else_stays(tmp_path: Path) -> None:
    gone = ["brick/tests/__init__.py", "brick/tests/data/a.bin", "brick/deep/tests/b.py"]
    kept = ["brick/__init__.py", "brick/deep/c.py", "brick/testing.py", "brick/test.py"]
    site = install(tmp_path, [*gone, *kept])
    (site / "brick/tests/data").joinpath("not-from-the-wheel").touch()
    found = trim(tmp_path, [Rule("tests", "not imported", ["*/tests/*"])])
    assert found["rules"] == [
        {"what": "tests", "why": "not imported", "bytes": 15, "files": sorted(gone)},
    ]
    left = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
    info = {"brick-1.0.dist-info/METADATA", "brick-1.0.dist-info/RECORD"}
    assert left == {*kept, *info, "brick/tests/data/not-from-the-wheel"}
    assert not (site / "brick/deep/tests").exists()


def test_a_licence_stays_wherever_it_lies() -> None:
    assert rule_of("torch-2.13.0.dist-info/licenses/third_party/tests/LICENSE", RULES) is None
    assert rule_of("torch/test/cpp/a", RULES) is RULES[0]


@pytest.mark.parametrize(
    "path",
    [
        # Each of these is needed, and lies near something that is not.
        "torch/bin/torch_shm_manager",
        "torch/lib/libtorch_cpu.so",
        "torch/lib/libshm.so",
        "torch/testing/_internal/optests/__init__.py",
        "torch/distributed/flight_recorder/__init__.py",
        "torch/_inductor/codegen/cpp_prefix.h",
        "triton/backends/nvidia/driver.c",
        "triton/backends/nvidia/include/cuda.h",
        "numpy/testing/__init__.py",
        "numpy/core/_multiarray_tests.cpython-311-x86_64-linux-gnu.so",
        "pyarrow/libarrow_python.so.2400",
        "pyarrow/libarrow_substrait.so.2400",
        "pyarrow/lib.cpython-311-x86_64-linux-gnu.so",
        "accelerate/commands/test.py",
        "../../../bin/torchrun",
    ],
)
def test_what_is_needed_stays(path: str) -> None:
    assert rule_of(path, RULES) is None


def test_only_what_a_wheel_of_this_environment_brought_is_touched(tmp_path: Path) -> None:
    """A base image's torch lies elsewhere; a RECORD that points out of the environment is not followed."""
    base = install(tmp_path / "base", ["torch/tests/a"])
    site = install(tmp_path / "venv", ["brick/__init__.py"])
    outside = f"../../../../base/{(base / 'torch/tests/a').relative_to(tmp_path / 'base')}"
    with (site / "brick-1.0.dist-info/RECORD").open("a", encoding="utf-8") as record:
        record.write(f"{outside},sha256=x,5\n{base}/torch/tests/a,sha256=x,5\n")
    assert (site / outside).exists()
    assert rule_of(outside, RULES)
    found = trim(tmp_path / "venv", RULES)
    assert (base / "torch/tests/a").exists()
    assert not any(rule["files"] for rule in found["rules"])


def test_as_a_script_it_says_what_it_took_out_and_writes_the_same_list_each_time(tmp_path: Path) -> None:
    texts = []
    for name in ("one", "two"):
        install(tmp_path / name, ["torch/include/b.h", "torch/include/a.h", "torch/__init__.py"])
        command = [sys.executable, "-S", ROOT / "images/trim.py", f"--rules={ROOT}/images/trim.json"]
        done = subprocess.run(
            [*map(str, command), f"--prefix={tmp_path / name}"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert "headers: 2 files, 0.0 MB: for compiling extensions in C++" in done.stdout
        assert f"took out 2 files of 0.0 MB; {tmp_path / name}/trimmed.json lists them" in done.stdout
        texts.append((tmp_path / name / "trimmed.json").read_text(encoding="utf-8"))
    assert texts[0] == texts[1]
    assert json.loads(texts[0])["rules"][1]["files"] == ["torch/include/a.h", "torch/include/b.h"]


@pytest.mark.engine
def test_a_change_in_train_changes_less_than_a_mebibyte_of_layers(
    cpu_image: Image, tree_build_py: BuildCommand, tmp_path: Path
) -> None:
    """Python, its byte code and the small model lie below: a team pulls them once."""
    options = [option for option in cpu_image.options if not option.startswith("--tag=")]
    with (tree_build_py.tree / "train/device.py").open("a", encoding="utf-8") as file:
        file.write("\n# another line\n")
    layers = []
    for build in (cpu_image.build, tree_build_py):
        layout = tmp_path / f"layout-{len(layers)}"
        done = build(*options, f"--output=oci:{layout}")
        assert done.returncode == 0, done.stderr
        ((_, manifest),) = images_of(layout, digest_of(layout), "")
        layers.append({item["digest"]: item["size"] for item in manifest["layers"]})
    changed = {digest: size for digest, size in layers[1].items() if digest not in layers[0]}
    assert changed
    assert sum(changed.values()) < 2**20
    assert sum(layers[1].values()) > 100 * 2**20


@pytest.mark.engine
def test_the_image_is_small_and_knows_what_it_lacks(cpu_image: Image) -> None:
    """1.3 GB with byte code is the bar; every rule takes something out, and nothing that it names is left."""
    code = """
import fnmatch, json, os, pathlib, sys
import pyarrow.parquet, pyarrow.dataset, pandas, torch, transformers, peft, datasets, matplotlib.pyplot
site = pathlib.Path(torch.__file__).parents[1]
found = json.load(open(sys.prefix + "/trimmed.json"))
counts = {rule["what"]: len(rule["files"]) for rule in found["rules"]}
left = [name for rule in found["rules"] for name in rule["files"] if (site / name).exists()]
size = sum(path.lstat().st_size for path in site.rglob("*") if path.is_file())
print(json.dumps([counts, left, size]))
"""
    done = cpu_image.run("python", "-c", code)
    assert done.returncode == 0, done.stderr
    counts, left, size = json.loads(done.stdout.splitlines()[-1])
    assert set(counts) == {rule.what for rule in RULES}
    assert all(counts.values()), counts
    assert left == []
    assert size < 1.3e9
