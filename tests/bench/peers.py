"""Environments of the peers: each has its own, made by pip with the CPU build of torch first."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

TORCH = "torch==2.13.0"
PEERS = {"TRL": ["trl==1.16.0", "peft==0.21.2"], "LLaMA-Factory": ["llamafactory==0.9.5"]}
LEFT_OUT = ("torch", "torchaudio", "torchvision")
"""What a peer asks for and text does not need; their wheels would bring another torch."""


def python_of(contender: str, folder: Path | None) -> str | None:
    """The interpreter that runs a contender; None for a peer without a folder."""
    peer = contender.partition(",")[0]
    if peer not in PEERS:
        return sys.executable
    return None if folder is None else str(_environment(peer, folder.resolve()))


def _environment(peer: str, folder: Path) -> Path:
    place = folder / peer.lower()
    python = place / "bin" / "python"
    if not (place / "ready").exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        _install(python, TORCH)
        first, *more = PEERS[peer]
        _install(python, "--no-deps", first)
        name = first.partition("==")[0]
        needed = _output(
            python, f"from importlib.metadata import requires; print(*requires({name!r}), sep='\\n')"
        )
        _install(python, *wanted(needed.splitlines()), *more)
        # LLaMA-Factory imports torchaudio at its start; for text an empty module is enough.
        audio = Path(_output(python, "import sysconfig; print(sysconfig.get_path('purelib'))")) / "torchaudio"
        audio.mkdir(exist_ok=True)
        (audio / "__init__.py").write_text("", encoding="utf-8")
        (place / "ready").touch()
    return python


def wanted(requirements: list[str]) -> list[str]:
    """Those of a distribution's requirements that are installed: no extras, nothing of LEFT_OUT."""
    plain = [line for line in requirements if "extra ==" not in line]
    return [line for line in plain if re.split(r"[^A-Za-z0-9_.-]", line)[0].lower() not in LEFT_OUT]


def _install(python: Path, *packages: str) -> None:
    subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)


def _output(python: Path, code: str) -> str:
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()
