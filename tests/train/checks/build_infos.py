"""The content of a build-info.json, for the tests of verify."""

from __future__ import annotations

from importlib import metadata
from typing import Any

import torch


def build_content(**fields: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "backend": "cpu",
        "title": "CPU",
        "device_type": "cpu",
        "torch": {"version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip},
        "plugin": None,
        "packages": {"pydantic": metadata.version("pydantic")},
        "provided": {},
        "records": {},
        "refused_packages": [],
        "import_at_build": True,
        "device_policy": {
            "precision": ["fp32"],
            "attention": ["sdpa", "eager"],
            "pinned_memory": False,
            "process_group": "gloo",
        },
        "visible_devices_variable": None,
        **fields,
    }
