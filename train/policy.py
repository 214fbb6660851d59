"""The device policy: data of build-info.json, or a plain one; and the environment that it asks for."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from train.errors import UserError

if TYPE_CHECKING:
    from train.image import BuildInfo

ANY_ALLOCATOR = "PYTORCH_ALLOC_CONF"
"""torch's own variable for the allocator of every device type, from 2.9 on: it goes before a device's."""


@dataclass(frozen=True)
class DevicePolicy:
    """What a run uses on a device type unless it is told otherwise.

    precision, attention: candidates, the first that passes its probe. precision_on_request: candidates that
    are taken only when asked for by name. environment, allocator: variable -> value, set where it is not set.
    loss_scale: `dynamic` and `initial`, for fp16; None: torch's own. source: where this policy comes from.
    """

    device_type: str
    precision: tuple[str, ...]
    attention: tuple[str, ...]
    pinned_memory: bool
    process_group: str
    precision_on_request: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    allocator: dict[str, str] = field(default_factory=dict)
    loss_scale: dict[str, Any] | None = None
    source: str = ""


# For an environment without build-info.json: what is right on any device of the type, not what is fastest.
PLAIN: dict[str, dict[str, Any]] = {
    "cuda": {
        "precision": ["bf16", "fp32"],
        "precision_on_request": ["fp16"],
        "attention": ["sdpa", "eager"],
        "pinned_memory": True,
        "process_group": "nccl",
    },
    "npu": {
        "precision": ["fp32"],
        "precision_on_request": ["fp16", "bf16"],
        "attention": ["eager"],
        "pinned_memory": False,
        "process_group": "hccl",
    },
    "cpu": {
        "precision": ["fp32"],
        "attention": ["sdpa", "eager"],
        "pinned_memory": False,
        "process_group": "gloo",
    },
}


def read_policy(device_type: str, values: Mapping[str, Any], source: str) -> DevicePolicy:
    """The policy in a mapping as a spec has it; what it leaves out is the plain one's, or nothing.

    KeyError, TypeError, ValueError where it is none.
    """
    found = {**PLAIN.get(device_type, {}), "precision_on_request": [], **values}
    allocator = found.get("allocator")
    scale = found.get("loss_scale")
    return DevicePolicy(
        device_type=device_type,
        precision=tuple(found["precision"]),
        attention=tuple(found["attention"]),
        pinned_memory=bool(found["pinned_memory"]),
        process_group=str(found["process_group"]),
        precision_on_request=tuple(found["precision_on_request"]),
        environment=dict(found.get("environment") or {}),
        allocator={allocator["variable"]: allocator["value"]} if allocator else {},
        loss_scale={"dynamic": bool(scale["dynamic"]), "initial": int(scale["initial"])} if scale else None,
        source=source,
    )


def policy_for(device_type: str, image: BuildInfo | None) -> DevicePolicy:
    """The image's own policy on the device that it was built for, the plain one elsewhere."""
    if image is not None and image.device_type == device_type:
        return image.device_policy
    return read_policy(device_type, PLAIN[device_type], f"plain policy for {device_type}")


def set_environment(policy: DevicePolicy) -> list[str]:
    """Set each variable of the policy that is not set yet; the words on those that somebody else decided.

    Before torch is loaded: an allocator reads its variable once, when its device is first used.
    """
    others = []
    for name, value in (policy.environment | policy.allocator).items():
        if name in policy.allocator and name not in os.environ and ANY_ALLOCATOR in os.environ:
            others.append(f"{name} is left out: {ANY_ALLOCATOR} was given")
        elif os.environ.setdefault(name, value) != value:
            others.append(f"{name} was given, the policy's is {value}")
    return others


def set_image_environment() -> None:
    """The same for the image around this process, if there is one; nothing where its build info is broken,
    which every command that needs it tells.
    """
    from train.image import read_build_info

    try:
        image = read_build_info()
    except UserError:
        return
    if image is not None:
        set_environment(image.device_policy)


def environment_now(policy: DevicePolicy) -> dict[str, str]:
    """The policy's variables as this process has them."""
    names = [*policy.environment, *policy.allocator]
    return {name: os.environ[name] for name in names if name in os.environ}
