"""Make build-info.json: the one file by which the run side knows its image."""

from __future__ import annotations

import re
from typing import Any

from images.lockfile import Lock
from images.pins import Pin
from images.spec import ROOT, BackendSpec, TorchBuild

SCHEMA = 1


def isotune_version() -> str:
    """Return the version in pyproject.toml (read by pattern: tomllib begins with Python 3.11)."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    match = re.search(r'^version = "([^"]+)"', text, re.MULTILINE)
    return match[1] if match else "unknown"


def build_info(spec: BackendSpec, lock: Lock | None) -> dict[str, Any]:
    """Return what is known before a build; `record.complete` adds the rest."""
    plugin = spec.plugin
    return {
        "schema": SCHEMA,
        "isotune": isotune_version(),
        "backend": spec.name,
        "variant": spec.variant,
        "device_type": spec.device_policy.device_type,
        "python": spec.python.version,
        "architectures": spec.architectures,
        "torch": {
            "version": spec.torch.version,
            "by_architecture": spec.torch.by_architecture,
            **_torch_build(spec.torch.build),
        },
        "plugin": plugin.model_dump(include={"distribution", "module", "version"}) if plugin else None,
        "packages": _packages(lock.pins) if lock else {},
        "provided": spec.provided,
        "refused_packages": spec.refused_packages,
        "import_at_build": spec.import_at_build,
        "import_note": spec.import_note,
        "lock_id": lock.lock_id if lock else "missing",
        "spec_checksum": lock.spec_checksum if lock else "missing",
        "base_image": spec.base.reference,
        "base_digest": spec.base.digest,
        "base_overridden": False,
        "commit": "unknown",
        "source_date_epoch": 0,
        "device_policy": spec.device_policy.model_dump(),
        "environment": spec.environment,
        "visible_devices_variable": spec.runtime.visible_devices_variable,
    }


def _torch_build(build: TorchBuild) -> dict[str, str | None]:
    """Return torch.version's fields: null for a build without, `unknown` where it was not published."""
    return {"cuda": _none(build.cuda), "hip": _none(build.hip)}


def _none(value: str) -> str | None:
    return None if value == "none" else value


def _packages(pins: list[Pin]) -> dict[str, Any]:
    """Return name -> version, or {version, marker}, or a list of these if several share a name."""
    table: dict[str, Any] = {}
    for pin in pins:
        entry: Any = {"version": pin.version, "marker": pin.marker} if pin.marker else pin.version
        if pin.name in table:
            earlier = table[pin.name]
            entry = [*(earlier if isinstance(earlier, list) else [earlier]), entry]
        table[pin.name] = entry
    return table
