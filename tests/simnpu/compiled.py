"""The simulated NPU's compiled part: built once, kept by its content and torch's version."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from filelock import FileLock

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NAME = "simnpu_native"
FLAGS = ["-O1", "-g0", "-Wall", "-Wno-unknown-pragmas"]
BUILD = """
import sys
from torch.utils.cpp_extension import load
name, folder, *rest = sys.argv[1:]
border = rest.index("--")
load(name, rest[border + 1 :], extra_cflags=rest[:border], build_directory=folder, is_python_module=True)
"""
"""Runs in a process of its own: a library that is loaded registers its device for good."""


class NoCompiler(Exception):
    """There is nothing here that could build the library, with the reason."""


def cache() -> Path:
    """ISOTUNE_SIMNPU_CACHE, or a folder of this virtual environment."""
    return Path(os.environ.get("ISOTUNE_SIMNPU_CACHE") or Path(sys.prefix) / "simnpu")


def sources() -> list[Path]:
    return sorted((HERE / "csrc").glob("*.cpp"))


def digest() -> str:
    """Of all that decides what the library is."""
    found = hashlib.sha256()
    for path in sorted((HERE / "csrc").iterdir()):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    found.update(repr([metadata.version("torch"), sys.version_info[:2], os.uname().machine, FLAGS]).encode())
    return found.hexdigest()[:16]


def build() -> Path:
    """The library's path. Builds it where it is not there, in about a minute; one process at a time.

    NoCompiler where there is no compiler or no ninja; RuntimeError with the compiler's words where it fails.
    """
    folder = cache() / digest()
    library = folder / f"{NAME}.so"
    if library.exists():
        return library
    tools = (os.environ.get("CXX", "c++"), "ninja")
    missing = [name for name in tools if not shutil.which(name, path=_path())]
    if missing:
        raise NoCompiler(f"the simulated NPU cannot be built: no {' and no '.join(missing)} on PATH")
    cache().mkdir(parents=True, exist_ok=True)
    with FileLock(cache() / "lock"):
        if not library.exists():
            _compile(folder)
    return library


def _path() -> str:
    """PATH, before it what this environment has: ninja comes as a package."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def _compile(folder: Path) -> None:
    """Into a folder of its own, which gets its name when it is whole."""
    jobs = os.environ.get("MAX_JOBS", "2")
    with tempfile.TemporaryDirectory(dir=cache(), prefix="building-") as temporary:
        done = subprocess.run(
            [sys.executable, "-c", BUILD, NAME, temporary, *FLAGS, "--", *map(str, sources())],
            capture_output=True,
            text=True,
            check=False,
            env={
                **os.environ,
                "PATH": _path(),
                "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
                "MAX_JOBS": jobs,
            },
        )
        if done.returncode:
            raise RuntimeError(f"the simulated NPU does not build:\n{done.stdout}\n{done.stderr}")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        Path(temporary, f"{NAME}.so").rename(folder / f"{NAME}.so")


def environment(library: Path, **more: str) -> dict[str, str]:
    """Variables for a process that has the simulated NPU; more: faults, named in csrc/settings.cpp."""
    paths = [str(HERE / "site"), str(ROOT)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "SIMNPU_LIBRARY": str(library), **more}


if __name__ == "__main__":
    print(build())
