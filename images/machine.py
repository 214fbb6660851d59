"""What a wheel must fit: a Python and an architecture, also those of another machine."""

from __future__ import annotations

import platform
from dataclasses import dataclass

from images.errors import EXIT_USAGE, UserError
from images.spec import BackendSpec

# The C library of the oldest base image (Ubuntu 22.04). Newest first, as pip prefers: a build from the folder
# then gets the wheels that a build from an index gets.
GLIBC = range(35, 4, -1)
ALIASES = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


@dataclass(frozen=True)
class Machine:
    """What the wheels are for: CPython such as 3.11 on an architecture."""

    python: str
    architecture: str

    def __str__(self) -> str:
        return f"Python {self.python} on {self.architecture}"


def fits(file: str, machine: Machine) -> bool:
    """Tell whether a wheel's name says that it runs on the machine."""
    parts = file.removesuffix(".whl").rsplit("-", 3)
    if len(parts) != 4:
        return False
    pythons, abis, platforms = (set(part.split(".")) for part in parts[1:])
    minor = int(machine.python.partition(".")[2])
    own = f"cp3{minor}"
    older = {f"cp3{number}" for number in range(2, minor + 1)} if "abi3" in abis else {own}
    return bool(
        pythons & ({"py3"} | {f"py3{number}" for number in range(minor + 1)} | older)
        and abis & {"none", "abi3", own}
        and platforms & {"any", *platform_tags(machine.architecture)}
    )


def platform_tags(architecture: str) -> list[str]:
    """Return the platform tags of wheels that the base images run, in pip's order of preference."""
    tags = []
    for minor in GLIBC:
        tags.append(f"manylinux_2_{minor}_{architecture}")
        tags += [f"{ALIASES[minor]}_{architecture}"] if minor in ALIASES else []
    return [*tags, f"linux_{architecture}"]


def machines(spec: BackendSpec, architectures: list[str], python: str | None) -> list[Machine]:
    """Return the machines asked for; by default one like this, else one that the backend has.

    Raises UserError with every architecture and Python that the backend does not have.
    """
    here = platform.machine()
    chosen = architectures or [here if here in spec.architectures else spec.architectures[0]]
    faults = [
        f"--architecture: {spec.image} is for {', '.join(spec.architectures)}, not {name}"
        for name in chosen
        if name not in spec.architectures
    ]
    if python and python not in spec.python.covers:
        faults.append(
            f"--python: the lock of {spec.image} covers {', '.join(spec.python.covers)}, not {python}"
        )
    if faults:
        raise UserError("\n".join(faults), "`build.py list` shows what there is", EXIT_USAGE)
    return [Machine(python or spec.python.version, name) for name in chosen]
