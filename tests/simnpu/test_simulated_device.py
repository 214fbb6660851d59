"""The simulated NPU is a device as torch expects one: what inside/ checks, in a process that has it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.simnpu import compiled

INSIDE = compiled.HERE / "inside"


def checks() -> list[str]:
    """`file::function` of each check."""
    return [
        f"{path.stem}::{node.name}"
        for path in sorted(INSIDE.glob("check_*.py"))
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
    ]


@pytest.fixture(scope="session")
def outcomes(library: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """Check -> for each of its cases the fault, empty where it passed. All ran in one process of pytest."""
    report = tmp_path_factory.mktemp("checks") / "report.xml"
    patterns = ["python_files=check_*.py", "python_functions=check_*"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", str(INSIDE)]
        + [part for pattern in patterns for part in ("-o", pattern)],
        capture_output=True,
        text=True,
        check=False,
        env=compiled.environment(library, SIMNPU_DEVICES="2"),
        cwd=compiled.ROOT,
        timeout=600,
    )
    assert report.exists(), done.stdout + done.stderr
    found = defaultdict(list)
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{case.attrib['classname'].rpartition('.')[2]}::{case.attrib['name'].partition('[')[0]}"
        faults = [part.text or part.attrib.get("message", "") for part in case if part.tag != "properties"]
        found[name].append("\n".join(faults))
    return dict(found)


@pytest.mark.parametrize("check", checks())
def test_inside(check: str, outcomes: dict[str, list[str]]) -> None:
    assert outcomes.get(check), "the check did not run"
    assert [fault for fault in outcomes[check] if fault] == []


def test_a_process_without_the_driver_says_what_the_real_plugin_says(library: Path) -> None:
    environment = compiled.environment(library)
    del environment["SIMNPU_LIBRARY"]
    done = subprocess.run(
        [sys.executable, "-c", "import torch"], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 1
    assert "Failed to load the backend extension: torch_npu" in done.stderr
    assert "libascend_hal.so: cannot open shared object file" in done.stderr


def test_the_build_is_named_after_all_that_decides_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = compiled.digest()
    (tmp_path / "csrc").mkdir()
    for path in (compiled.HERE / "csrc").iterdir():
        (tmp_path / "csrc" / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(compiled, "HERE", tmp_path)
    assert compiled.digest() == first
    with (tmp_path / "csrc" / "device.h").open("a") as file:
        file.write("// changed\n")
    assert compiled.digest() != first
    monkeypatch.undo()
    monkeypatch.setattr(compiled, "FLAGS", ["-O0"])
    assert compiled.digest() != first


def test_without_a_compiler_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOTUNE_SIMNPU_CACHE", str(tmp_path))
    monkeypatch.setattr(compiled, "_path", lambda: str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(compiled.NoCompiler, match=r"no c\+\+ and no ninja on PATH"):
        compiled.build()
    assert not list(tmp_path.iterdir())
