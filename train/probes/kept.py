"""Outcomes of probes, kept between runs for the same device, driver and versions."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

from train.data.cache import find_folder
from train.probes.outcome import Outcome

BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Tells hosts apart, and one host before and after a restart, which a new driver takes."""


def identity(device_type: str, index: int) -> dict[str, Any]:
    """All that an outcome depends on: device, driver, host, versions, and the probes' own code."""
    import torch

    from train.device import versions

    module: Any = getattr(torch, device_type)
    driver = getattr(torch._C, "_cuda_getDriverVersion", None) if device_type == "cuda" else None
    code = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        code.update(path.read_bytes())
    return {
        "device": [_name(module, index), index],
        "visible": {name: value for name, value in os.environ.items() if name.endswith("VISIBLE_DEVICES")},
        "driver": driver() if driver else None,
        "boot": BOOT.read_text(encoding="ascii").strip() if BOOT.exists() else os.uname().nodename,
        "torch": [torch.__version__, torch.version.cuda, torch.version.hip, torch.version.git_version],
        "versions": versions(),
        "environment": {
            name: value for name, value in os.environ.items() if name.startswith(("TORCH_", "PYTORCH_"))
        },
        "code": code.hexdigest(),
    }


def _name(module: Any, index: int) -> str:
    """The device's name; empty where this kind of device does not tell it."""
    try:
        return str(module.get_device_name(index))
    except (AttributeError, RuntimeError, NotImplementedError):
        return ""


def place(key: dict[str, Any]) -> Path | None:
    """The file of the outcomes that were found under this key; None where no folder can be written."""
    folder = find_folder([])
    text = json.dumps(key, sort_keys=True)
    return folder / f"probes-{hashlib.sha256(text.encode()).hexdigest()[:32]}.json" if folder else None


def read(path: Path) -> dict[str, Outcome]:
    """Probe -> outcome. A file that is missing or damaged holds none: its probes run again."""
    known = {field.name for field in fields(Outcome)}
    found = {}
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):
        for name, values in json.loads(path.read_text(encoding="utf-8")).items():
            if values.keys() == known and isinstance(values["passed"], bool):
                found[name] = Outcome(**values | {"kept": True})
    return found


def write(path: Path, outcomes: dict[str, Outcome]) -> None:
    """Replace the file in one move; a folder that is full or taken away costs the next run a second."""
    content = {name: outcome.as_dict() for name, outcome in outcomes.items()}
    with contextlib.suppress(OSError):
        with tempfile.NamedTemporaryFile(
            "w", dir=path.parent, suffix=".tmp", delete=False, encoding="utf-8"
        ) as file:
            file.write(json.dumps(content, indent=2) + "\n")
        Path(file.name).replace(path)
