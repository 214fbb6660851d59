"""Which device, precision and attention a run uses, and why.

The image's policy is data; nothing is guessed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from train.errors import EXIT_UNAVAILABLE, UserError
from train.image import BuildInfo

if TYPE_CHECKING:
    import torch

# For an environment without build-info.json: what is right on any device of the type, not what is fastest.
PLAIN_POLICY: dict[str, dict[str, Any]] = {
    "cuda": {"precision": ["bf16", "fp32"], "attention": ["sdpa", "eager"], "pinned_memory": True},
    "npu": {"precision": ["fp32"], "attention": ["eager"], "pinned_memory": False},
    "cpu": {"precision": ["fp32"], "attention": ["sdpa", "eager"], "pinned_memory": False},
}


class Asked(Protocol):
    """What is asked for: a recipe, or the options of a command. Each is `auto` or a value."""

    @property
    def device(self) -> str: ...
    @property
    def precision(self) -> str: ...
    @property
    def attn_implementation(self) -> str: ...


@dataclass(frozen=True)
class Choice:
    """A value and the reason for it."""

    value: Any
    reason: str


@dataclass(frozen=True)
class DeviceChoices:
    """What a run uses, each with its reason."""

    device: Choice
    precision: Choice
    attn_implementation: Choice
    pinned_memory: Choice

    def lines(self) -> list[str]:
        """The choices in words."""
        return [
            f"{name.replace('_', ' ')}: {choice['value']} ({choice['reason']})"
            for name, choice in asdict(self).items()
        ]

    def values(self) -> dict[str, Any]:
        """The choices without their reasons."""
        return {name: choice["value"] for name, choice in asdict(self).items()}

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the frozen weights."""
        import torch

        return {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[self.precision.value]


def choose(config: Asked, image: BuildInfo | None) -> DeviceChoices:
    """The device choices of a run; UserError (exit 69) where the device asked for, or built for, is
    not there.
    """
    device = _device(config, image)
    on_own_device = image is not None and image.device_type == device.value
    policy = image.device_policy if image and on_own_device else PLAIN_POLICY[device.value]
    source = "this image's device policy" if on_own_device else f"plain policy for {device.value}"
    return DeviceChoices(
        device=device,
        precision=_pick(config.precision, policy["precision"], source),
        attn_implementation=_pick(config.attn_implementation, policy["attention"], source),
        pinned_memory=Choice(bool(policy["pinned_memory"]), source),
    )


def _pick(asked: str, candidates: list[str], source: str) -> Choice:
    if asked != "auto":
        return Choice(asked, "asked for")
    return Choice(candidates[0], f"first of {source}")


def _device(config: Asked, image: BuildInfo | None) -> Choice:
    if config.device != "auto":
        _require(config.device, "it was asked for")
        return Choice(config.device, "asked for")
    if image is not None:
        _require(image.device_type, f"this image is built for {image.backend}")
        return Choice(image.device_type, f"this image is built for {image.backend}")
    for device_type in ("npu", "cuda"):  # npu first: its compatibility layers can make torch.cuda answer
        if is_available(device_type):
            return Choice(device_type, "found by torch; there is no build-info.json")
    return Choice("cpu", "no accelerator found by torch; there is no build-info.json")


def _require(device_type: str, reason: str) -> None:
    if not is_available(device_type):
        raise UserError(
            f"device: torch finds no {device_type} device, and {reason}",
            "give the container the device (docker run --device, --gpus), or --set device=cpu",
            EXIT_UNAVAILABLE,
        )


def is_available(device_type: str) -> bool:
    """Whether torch has a usable device of this type."""
    import torch

    if device_type == "cpu":
        return True
    module = getattr(torch, device_type, None)
    return bool(module and module.is_available())


def versions() -> dict[str, str | None]:
    """The installed versions that decide numbers."""
    from importlib import metadata

    found: dict[str, str | None] = {}
    for name in ("torch", "transformers", "peft", "accelerate", "tokenizers", "safetensors", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found
