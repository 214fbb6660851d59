"""build-info.json: what the build side says about this image, the one file where both sides meet."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train.errors import EXIT_CONFIG, UserError
from train.policy import DevicePolicy, read_policy

SCHEMA = 1
VARIABLE = "ISOTUNE_BUILD_INFO"


@dataclass(frozen=True)
class BuildInfo:
    """The fields of build-info.json that train/ reads; `content` is all of it, for the manifest of a run.

    title: the backend's name for readers. torch: version, by_architecture, and of torch.version cuda and hip:
    null for a build without it, `unknown` where it was not published.
    """

    path: Path
    backend: str
    title: str
    device_type: str
    torch: dict[str, Any]
    packages: dict[str, Any]
    provided: dict[str, str]
    plugin: dict[str, Any] | None
    records: dict[str, str]
    refused_packages: list[str]
    import_at_build: bool
    device_policy: DevicePolicy
    visible_devices_variable: str | None
    content: dict[str, Any] = field(repr=False)


def read_build_info() -> BuildInfo | None:
    """The image's build info; None in an environment that no build made. UserError where the file is broken.

    Looked for at $ISOTUNE_BUILD_INFO, then as build-info.json in the environment's own folder (sys.prefix).
    """
    named = os.environ.get(VARIABLE)
    path = Path(named) if named else Path(sys.prefix) / "build-info.json"
    if not path.exists():
        if named:
            raise UserError(f"{path}: does not exist", f"{VARIABLE} must name a build-info.json", EXIT_CONFIG)
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']}, this train reads schema {SCHEMA}")
        return BuildInfo(
            path=path,
            backend=content["backend"],
            title=content.get("title", content["backend"]),
            device_type=content["device_type"],
            torch=content["torch"],
            packages=content["packages"],
            provided=content["provided"],
            plugin=content["plugin"],
            records=content.get("records", {}),
            refused_packages=content["refused_packages"],
            import_at_build=content["import_at_build"],
            device_policy=read_policy(
                content["device_type"], content["device_policy"], "this image's device policy"
            ),
            visible_devices_variable=content.get("visible_devices_variable"),
            content=content,
        )
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise UserError(f"{path}: is not a build info: {fault!r}", "rebuild the image", EXIT_CONFIG) from None
