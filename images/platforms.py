"""For which processors an image is built: what was asked, what the spec has, what the engine can run."""

from __future__ import annotations

import re

from images.errors import EXIT_CONFIG, EXIT_UNAVAILABLE, EXIT_USAGE, UserError
from images.spec import BackendSpec

# Docker's name -> ours.
ARCHITECTURES = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
EMULATION = "register QEMU with the engine's kernel (Debian: qemu-user-static and binfmt-support), "
EMULATION += "or use an engine on such a host"


def chosen(spec: BackendSpec, asked: list[str], runs: list[str]) -> list[str]:
    """Return the platforms to build for, each once and in one order.

    `runs`: what the engine can run, its own first. Nothing asked: its own. Raises UserError with every
    platform that is unknown, not the spec's, or that this engine cannot run.
    """
    names = sorted(set(asked)) or runs[:1]
    unknown = [name for name in names if name not in ARCHITECTURES]
    if unknown:
        message = f"--platform: {', '.join(unknown)}: not known here"
        raise UserError(message, f"one of {', '.join(ARCHITECTURES)}", EXIT_USAGE)
    wrong = [name for name in names if ARCHITECTURES[name] not in spec.architectures]
    if wrong:
        told = ", ".join(ARCHITECTURES[name] for name in wrong)
        message = f"engine: it is {told}, " if not asked else f"--platform {', '.join(wrong)}: "
        message += f"{spec.image} is for {', '.join(spec.architectures)}"
        raise UserError(message, _instead(spec, runs, bool(asked)), EXIT_CONFIG)
    lacking = [name for name in names if name not in runs]
    if lacking:
        message = f"engine: it cannot run {', '.join(lacking)}, only {', '.join(runs) or 'unknown platforms'}"
        raise UserError(message, EMULATION, EXIT_UNAVAILABLE)
    return names


def read_platforms(text: str) -> list[str]:
    """Return what `docker buildx inspect` says the engine runs, without the /v2 and /v3 of amd64."""
    found = re.search(r"^Platforms:\s*(.+)$", text, re.MULTILINE)
    names = [name.strip().rstrip("*") for name in found[1].split(",")] if found else []
    return list(dict.fromkeys(name for name in names if name in ARCHITECTURES))


def _instead(spec: BackendSpec, runs: list[str], asked: bool) -> str:
    fits = [name for name in runs if ARCHITECTURES[name] in spec.architectures]
    if fits:
        return f"--platform {fits[0]}" + ("" if asked else ", which it emulates")
    return "use an engine on such a host"
