"""What isotune does on the accelerator of this machine, in at most six minutes: one JSON object.

    tests/device_check.sh [--dry] [--wheels FOLDER] [--output FILE] [--seconds N]

Each part runs in a process of its own under a time limit; one that fails is recorded, and the others go on.
Without a network: what is not installed is taken from `--wheels`, a folder of wheels for any machine, such as
peft's; without it the parts that need it are skipped, and say so. `--dry`: tiny shapes on the CPU. Exit 1
where a part failed, 69 where there is no accelerator.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DISTRIBUTIONS = ("torch", "transformers", "peft", "accelerate", "safetensors", "numpy", "pydantic", "typer")
EXIT_UNAVAILABLE = 69


def main(arguments: list[str] | None = None) -> int:
    """Run all parts, or the one that a child was started for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry", action="store_true", help="tiny shapes on the CPU: does every line run?")
    parser.add_argument("--wheels", type=Path, help="folder of pure Python wheels, used where not installed")
    parser.add_argument("--output", type=Path, help="a file for the JSON, written after each part")
    parser.add_argument("--seconds", type=float, default=345, help="of all parts together")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--site", default="", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    sys.path[:0] = [str(ROOT), str(HERE)]
    if options.part:
        if options.site:
            sys.path.append(options.site)  # last: what is installed comes first
        return _part(options)
    device = "cpu" if options.dry else _accelerator()
    if device is None:
        print(
            "error: torch finds no accelerator here\nhint: --dry runs every part on the CPU", file=sys.stderr
        )
        return EXIT_UNAVAILABLE
    with tempfile.TemporaryDirectory(prefix="device-check-") as folder:
        report = check(options, device, Path(folder))
    print(json.dumps(report, indent=2))
    return 1 if any(part["status"] == "failed" for part in report["parts"].values()) else 0


def check(options: argparse.Namespace, device: str, folder: Path) -> dict[str, Any]:
    """The report of all parts, written to `--output` as it grows."""
    from device_parts import PARTS

    ends = time.monotonic() + options.seconds
    site = folder / "site"
    taken = _unpack(options.wheels, site) if options.wheels else []
    report: dict[str, Any] = {"dry": options.dry, "device": _describe(device), "versions": _versions()}
    report |= {"from_wheels": taken, "parts": {}}
    for name, (_, limit) in PARTS.items():
        started = time.monotonic()
        allowed = min(limit * (3 if options.dry else 1), ends - started)  # a dry machine may be a slow one
        report["parts"][name] = found = _child(options, name, site if taken else None, allowed)
        found["seconds"] = round(time.monotonic() - started, 1)
        print(f"{name}: {found['status']} ({found['seconds']} s)", file=sys.stderr, flush=True)
        if options.output:
            options.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    return report


def _child(options: argparse.Namespace, name: str, site: Path | None, limit: float) -> dict[str, Any]:
    """What a part gave in a process of its own; how it failed where it did."""
    if limit <= 1:
        return {"status": "skipped", "reason": "no time is left"}
    command = [sys.executable, str(Path(__file__).resolve()), "--part", name]
    command += ["--dry"] * options.dry + (["--site", str(site)] if site else [])
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, env=environment, check=False
        )
    except subprocess.TimeoutExpired as fault:
        said = (
            fault.stderr.decode(errors="replace") if isinstance(fault.stderr, bytes) else fault.stderr or ""
        )
        return {"status": "failed", "reason": f"did not end within {limit:.0f} s", "stderr": said[-2000:]}
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        return {"status": "failed", "reason": f"exit code {done.returncode}", "stderr": done.stderr[-2000:]}


def _part(options: argparse.Namespace) -> int:
    """In the child: one part, its result as one line of JSON."""
    import device_parts
    import device_steps

    device = "cpu" if options.dry else _accelerator() or "cpu"
    place = device_steps.Place(device, options.dry, 0.2 if options.dry else 4.0)
    try:
        with device_parts.quiet():
            figures = device_parts.PARTS[options.part][0](place)
        found = {"status": "failed" if figures.get("failed") else "passed", **figures}
    except device_steps.Skipped as reason:
        found = {"status": "skipped", "reason": str(reason)}
    except ImportError as fault:
        found = {"status": "skipped", "reason": f"needs what is not installed: {fault}"}
    except Exception as fault:
        found = {"status": "failed", "reason": f"{type(fault).__name__}: {str(fault)[:2000]}"}
    print(json.dumps(found))
    return 0


def _accelerator() -> str | None:
    """The device type that torch has here; None where it has the CPU alone."""
    import torch

    for name in ("npu", "cuda"):
        module = getattr(torch, name, None)
        if module is not None and module.is_available():
            return name
    return None


def _describe(device: str) -> dict[str, Any]:
    import torch

    if device == "cpu":
        return {"type": "cpu", "name": platform.processor() or platform.machine()}
    module = getattr(torch, device)
    found = {"type": device, "name": module.get_device_name(), "count": module.device_count()}
    memory = getattr(module.get_device_properties(0), "total_memory", None)
    return found | {"memory_bytes": memory, "cuda": torch.version.cuda, "hip": torch.version.hip}


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in DISTRIBUTIONS:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def _unpack(folder: Path, site: Path) -> list[str]:
    """Unpack the wheels whose module is not installed; their file names."""
    site.mkdir()
    taken = []
    for wheel in sorted(folder.glob("*.whl")):
        if importlib.util.find_spec(wheel.name.split("-")[0]) is None:
            with zipfile.ZipFile(wheel) as content:
                content.extractall(site)
            taken.append(wheel.name)
    return taken


if __name__ == "__main__":
    sys.exit(main())
