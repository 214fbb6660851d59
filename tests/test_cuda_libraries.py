"""Stand-ins for missing libraries: what is linked with them loads, and hears that there is no device."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import cuda_libraries
import pytest

pytestmark = pytest.mark.skipif(not shutil.which("gcc") or not shutil.which("nm"), reason="no gcc or nm here")


def library(folder: Path, name: str, source: str, *options: str) -> Path:
    (folder / "source.c").write_text(source)
    command = ["gcc", "-shared", "-fPIC", "-w", "-o", str(folder / name), str(folder / "source.c"), *options]
    subprocess.run(command, check=True)
    return folder / name


def asked(path: Path) -> subprocess.CompletedProcess[str]:
    """Load a library and call its function, in a process of its own: names of libraries are a process's."""
    code = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).ask())"
    return subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("version", ["", "libcufoo.so.12", "FOO"])
def test_a_library_whose_need_is_missing_loads_and_hears_no_device(tmp_path: Path, version: str) -> None:
    """With versioned symbols, as most of CUDA's are, and without."""
    soname = ["-Wl,-soname,libcufoo.so.12"]
    if version:
        (tmp_path / "script").write_text(f"{version} {{ global: cuFoo; }};\n")
        soname.append(f"-Wl,--version-script,{tmp_path / 'script'}")
    needed = library(tmp_path, "libcufoo.so.12", "int cuFoo() { return 0; }\n", *soname)
    lib = tmp_path / "lib"
    lib.mkdir()
    source = "int cuFoo();\nint ask() { return cuFoo(); }\n"
    user = library(tmp_path, "libuser.so", source, str(needed), "-Wl,-rpath,$ORIGIN").rename(
        lib / "libuser.so"
    )
    needed.unlink()
    assert "libcufoo.so.12: cannot open" in asked(user).stderr
    assert cuda_libraries.make(lib) == ["libcufoo.so.12"]
    assert asked(user).stdout == f"{cuda_libraries.NO_DEVICE}\n"
    assert cuda_libraries.make(lib) == []
