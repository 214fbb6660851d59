"""The rules of the tree, read from the code itself: who imports whom, and where a vendor's name may stand."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.context import IN_IMAGE

ROOT = Path(__file__).resolve().parent.parent
BUILD_SIDE = [ROOT / "build.py", *sorted((ROOT / "images").rglob("*.py"))]
RUN_SIDE = sorted((ROOT / "train").rglob("*.py"))
VENDORS = re.compile(
    r"nvidia|ascend|cann(?!ot)\b|huawei|hygon|\bdtk|\bdcu|\bhcu|kunpeng|davinci|hyhal", re.IGNORECASE
)
# What a module may not do at its top: it would be done by everyone who only asks for --help.
WORK = {
    "open",
    "read_text",
    "read_bytes",
    "write_text",
    "run",
    "Popen",
    "check_output",
    "system",
    "urlopen",
    "connect",
}
WORK |= {
    "load",
    "loads",
    "safe_load",
    "import_module",
    "glob",
    "rglob",
    "iterdir",
    "listdir",
    "exists",
    "main",
    "print",
}


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, also inside functions and behind TYPE_CHECKING."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""


def roots(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(path)}


def test_there_are_files_to_look_at() -> None:
    assert len(BUILD_SIDE) > 10
    assert len(RUN_SIDE) > 10


@pytest.mark.parametrize("name", names(RUN_SIDE))
def test_the_run_side_never_imports_the_build_side(name: str) -> None:
    assert not roots(ROOT / name) & {"images", "build", "docker"}


@pytest.mark.parametrize("name", names(BUILD_SIDE))
def test_the_build_side_never_imports_the_run_side_or_torch(name: str) -> None:
    assert not roots(ROOT / name) & {"train", "torch", "transformers", "peft", "accelerate", "datasets"}


@pytest.mark.parametrize("name", names(BUILD_SIDE))
def test_only_the_engine_knows_docker(name: str) -> None:
    assert name == "images/engine.py" or "docker" not in roots(ROOT / name)


@pytest.mark.parametrize("name", names(BUILD_SIDE))
def test_the_build_side_needs_no_more_than_its_list(name: str) -> None:
    allowed = {*sys.stdlib_module_names, "images", "pydantic", "yaml", "jinja2", "docker"}
    assert roots(ROOT / name) <= allowed


@pytest.mark.parametrize("name", [name for name in IN_IMAGE if name.endswith(".py")])
def test_what_runs_inside_a_build_needs_the_standard_library_and_its_like_alone(name: str) -> None:
    like = {f"images.{other.removesuffix('.py')}" for other in IN_IMAGE}
    others = {module.partition(".")[0] for module in imports(ROOT / "images" / name) if module not in like}
    assert others <= set(sys.stdlib_module_names)


@pytest.mark.parametrize(
    "name",
    [
        *names(BUILD_SIDE),
        *names(RUN_SIDE),
        "images/Dockerfile.j2",
        "images/activate.sh.j2",
        "images/entrypoint.sh",
    ],
)
def test_a_vendor_is_named_in_its_spec_only(name: str) -> None:
    found = {word.lower() for word in VENDORS.findall((ROOT / name).read_text(encoding="utf-8"))}
    assert found == set()


@pytest.mark.parametrize("name", names(BUILD_SIDE))
def test_no_backend_is_branched_on(name: str) -> None:
    """No comparison with a backend's name: a need is a field of the spec."""
    backends = {path.stem for path in (ROOT / "images/backends").glob("*.yaml")}
    for node in ast.walk(ast.parse((ROOT / name).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Compare):
            compared = {
                part.value for part in [node.left, *node.comparators] if isinstance(part, ast.Constant)
            }
            assert not compared & backends, f"line {node.lineno}"


@pytest.mark.parametrize("name", ["images/Dockerfile.j2", "images/activate.sh.j2"])
def test_a_template_asks_for_presence_and_compares_nothing(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    for condition in re.findall(r"{%\s*(?:el)?if (.*?)%}", text):
        assert not re.search(r"==|!=|\bin\b|<|>|['\"]", condition), condition


@pytest.mark.parametrize("name", [*names(BUILD_SIDE), *names(RUN_SIDE)])
def test_a_module_s_top_only_defines(name: str) -> None:
    for node in ast.parse((ROOT / name).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "__name__ == '__main__'"):
            continue
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom):
            continue
        assert not isinstance(node, ast.For | ast.While | ast.With | ast.Try), f"line {node.lineno}"
        for call in [item for item in ast.walk(node) if isinstance(item, ast.Call)]:
            called = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
            assert called not in WORK, f"line {call.lineno}: {called}()"


def test_importing_the_build_side_starts_nothing_and_reads_nothing() -> None:
    """Watched by the interpreter itself: no process, no connection, no file of the tree but modules."""
    modules = [".".join(Path(name).with_suffix("").parts) for name in names(BUILD_SIDE)]
    modules = [name.removesuffix(".__init__") for name in modules]
    third_party = "pydantic, yaml, jinja2, urllib.request, zipfile, tempfile, subprocess"
    code = f"""
import importlib, sys, {third_party}
seen = []
def watch(event, details):
    if event in ("subprocess.Popen", "os.system", "socket.connect"):
        seen.append(event)
    path = str(details[0]) if event == "open" else ""
    own = path.startswith({str(ROOT)!r}) and ".venv" not in path
    if own and "__pycache__" not in path and not path.endswith(".py"):
        seen.append(path)
sys.addaudithook(watch)
for name in {modules!r}:
    importlib.import_module(name)
print(seen)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", [*names(BUILD_SIDE), *names(RUN_SIDE)])
def test_no_module_is_named_after_nothing(name: str) -> None:
    assert Path(name).stem not in {"utils", "util", "helpers", "helper", "common", "manager", "base", "misc"}
