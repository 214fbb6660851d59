"""Stand-ins for the libraries that a CUDA build of torch is linked with, so that its CPU half can be tested
without three gigabytes of them: each function says that there is no device.

`python tests/cuda_libraries.py FOLDER`: FOLDER is torch's own `lib`. Needs gcc and binutils.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

NO_DEVICE = 100
"""cudaErrorNoDevice, and no success of any of these libraries."""
SYSTEM = re.compile(
    r"^(libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|libgomp|libcuda|ld-linux.*)\.so"
)
SYMBOL = re.compile(r"^\s*[0-9a-f]*\s+U (?P<name>[^@\s]+)(@+(?P<version>\S+))?$")
OWN = re.compile(r"^(cu|nccl|nv|__cuda|NVTX|nvtx|Nv)")

TEXT = re.compile(r"(String|Name|^ncclGetLastError)$")
"""Functions that give words."""


def lines_of(*command: str) -> list[str]:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def needed(library: Path) -> list[str]:
    """The names of the libraries that one is linked with."""
    found = [re.search(r"\(NEEDED\).*\[(.+)\]", line) for line in lines_of("readelf", "-d", str(library))]
    return [match[1] for match in found if match]


def references(library: Path) -> dict[str, str]:
    """Version of symbols -> the library in which one looks for it."""
    found, source = {}, ""
    for line in lines_of("objdump", "-p", str(library)):
        words = line.split()
        if words[:2] == ["required", "from"]:
            source = words[2].rstrip(":")
        elif source and len(words) == 4 and words[0].startswith("0x"):
            found[words[3]] = source
    return found


def missing(folder: Path) -> dict[str, dict[str, set[str]]]:
    """Library that is not there -> version of its symbols ("" where they have none) -> the symbols."""
    libraries = sorted(folder.glob("*.so*"))
    absent = {name for one in libraries for name in needed(one) if not SYSTEM.match(name)}
    absent -= {one.name for one in libraries}
    found: dict[str, dict[str, set[str]]] = {name: defaultdict(set) for name in sorted(absent)}
    for library in libraries if absent else ():
        homes = references(library)
        for line in lines_of("nm", "-D", "--undefined-only", str(library)):
            match = SYMBOL.match(line)
            if match and match["version"] and homes.get(match["version"]) in absent:
                found[homes[match["version"]]][match["version"]].add(match["name"])
            elif match and not match["version"] and OWN.match(match["name"]):
                # Looked for in all libraries: any of them may have it.
                found[min(absent)][""].add(match["name"])
    return found


def make(folder: Path) -> list[str]:
    """Write a library for each that is missing into `folder`; their names."""
    wanted = missing(folder)
    with tempfile.TemporaryDirectory() as scratch:
        for library, versions in wanted.items():
            names = sorted(set().union(*versions.values()))
            source, script = Path(scratch) / "source.c", Path(scratch) / "versions"
            source.write_text("".join(map(_function, names)))
            script.write_text(
                "".join(_node(version, found) for version, found in versions.items() if version)
            )
            command = ["gcc", "-shared", "-fPIC", "-w", "-O1", "-fno-builtin", f"-Wl,-soname,{library}"]
            command += [f"-Wl,--version-script,{script}"] if any(versions) else []
            subprocess.run([*command, "-o", str(folder / library), str(source)], check=True)
    return list(wanted)


def _function(name: str) -> str:
    if TEXT.search(name):
        return f'const char *{name}() {{ return "no device"; }}\n'
    return f"int {name}() {{ return {NO_DEVICE}; }}\n"


def _node(version: str, names: set[str]) -> str:
    return f"{version} {{ global: {' '.join(f'{name};' for name in sorted(names))} }};\n"


if __name__ == "__main__":
    print("\n".join(make(Path(sys.argv[1]))))
