"""Which device is there: what the image was built for, compared with what torch finds and torch is."""

from __future__ import annotations

import os
from pathlib import Path

from train.errors import EXIT_UNAVAILABLE, UserError
from train.image import BuildInfo
from train.missing import absent_libraries, missing_library


def find_device(asked: str, image: BuildInfo | None) -> tuple[str, str]:
    """The device type of a run, and why; `asked`: `auto` or one.

    UserError (exit 69) where the device asked for, or built for, is not there, or torch is another than the
    image's.
    """
    if image is not None:
        require_own_torch(image)
    if asked != "auto":
        _require(asked, "it was asked for", image)
        return asked, "asked for"
    if image is not None:
        reason = f"this image is built for {image.title}"
        _require(image.device_type, reason, image)
        return image.device_type, reason
    for device_type in ("npu", "cuda"):  # npu first: its compatibility layers can make torch.cuda answer
        if is_available(device_type):
            return device_type, "found by torch; there is no build-info.json"
    return "cpu", "no accelerator found by torch; there is no build-info.json"


def require_own_torch(image: BuildInfo) -> None:
    """UserError (exit 69) where the torch that runs is of another kind than the image's: both of two kinds
    say `cuda` of their devices.
    """
    import torch

    found = {"cuda": torch.version.cuda, "hip": torch.version.hip}
    wrong = [
        f"{kind} is {value}, the image's is {image.torch[kind]}"
        for kind, value in found.items()
        if kind in image.torch and (value is None) != (image.torch[kind] is None)
    ]
    if wrong:
        raise UserError(
            f"device: this image is built for {image.title}, and torch {torch.__version__} at "
            f"{Path(torch.__file__).parent} is not its torch: {'; '.join(wrong)}",
            "take the image of the backend that this host has; in this one nothing may replace or hide its "
            "torch (pip install, PYTHONPATH)",
            EXIT_UNAVAILABLE,
        )


def _require(device_type: str, reason: str, image: BuildInfo | None) -> None:
    if is_available(device_type):
        return
    why = [f"torch finds no {device_type} device, and {reason}", *_signs(device_type, image)]
    raise UserError(
        f"device: {'; '.join(why)}",
        "give the container the device (docker run --device, --gpus; train doctor says which), or "
        "--set device=cpu",
        EXIT_UNAVAILABLE,
    )


def _signs(device_type: str, image: BuildInfo | None) -> list[str]:
    """What may keep torch from finding the device, as far as this process can see."""
    import torch

    found = []
    plugin = image.plugin["module"] if image and image.plugin else None
    if plugin and not hasattr(torch, device_type):
        autoload = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
        off = " (TORCH_DEVICE_BACKEND_AUTOLOAD=0)" if autoload == "0" else ""
        found.append(f"its plugin {plugin} is not loaded{off}")
    if image and image.device_type == device_type:
        found += absent_libraries(image)
    name = image.visible_devices_variable if image else None
    if name and name in os.environ:
        found.append(f"{name} is {os.environ[name]!r}")
    return found


def is_available(device_type: str) -> bool:
    """Whether torch has a usable device of this type."""
    import torch

    if device_type == "cpu":
        return True
    module = getattr(torch, device_type, None)
    try:
        return bool(module and module.is_available())
    except RuntimeError:  # a driver that does not answer
        return False


def require_torch() -> None:
    """UserError (exit 69) where torch does not load: some builds of it, and plugins that it loads, need the
    host's driver.
    """
    try:
        import torch  # noqa: F401
    except (ImportError, OSError, RuntimeError) as fault:
        if told := missing_library(fault):
            raise told from None
        cause = fault.__cause__ or fault.__context__
        words = "; ".join(
            str(one).strip().splitlines()[0] for one in (fault, cause) if one and str(one).strip()
        )
        raise UserError(
            f"device: torch does not load: {words}",
            "give the container the host's driver libraries and devices: train doctor says which",
            EXIT_UNAVAILABLE,
        ) from None
