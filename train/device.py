"""Which device, precision and attention a run uses, and why.

The image's policy is data; nothing is guessed, and the device proves what it is to compute.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

from train.detect import find_device
from train.image import BuildInfo
from train.policy import DevicePolicy, environment_now, policy_for, set_environment

if TYPE_CHECKING:
    import torch

    from train.probes.pick import Probes


class Asked(Protocol):
    """What is asked for: a recipe, or the options of a command. `auto` or a value; probe: auto, again or
    off.
    """

    @property
    def device(self) -> str: ...
    @property
    def precision(self) -> str: ...
    @property
    def attn_implementation(self) -> str: ...
    @property
    def pinned_memory(self) -> str: ...
    @property
    def loss_scale(self) -> float | str: ...
    @property
    def probe(self) -> str: ...


@dataclass(frozen=True)
class Choice:
    """A value and the reason for it."""

    value: Any
    reason: str


@dataclass(frozen=True)
class DeviceChoices:
    """What a run uses, each with its reason. A value that is None plays no part here.

    loss_scale: `dynamic` and `initial`, of fp16. rotations: how OFT inverts. environment: variable -> value.
    visible_devices: what the process was given of the host's. probes: their outcomes, as JSON.
    """

    device: Choice
    precision: Choice
    attn_implementation: Choice
    pinned_memory: Choice
    process_group: Choice
    loss_scale: Choice
    rotations: Choice
    environment: Choice
    visible_devices: Choice
    probes: tuple[dict[str, Any], ...] = ()

    def named(self) -> dict[str, Choice]:
        """Name -> choice, of those that play a part."""
        found = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "probes"}
        return {name: choice for name, choice in found.items() if choice.value is not None}

    def lines(self) -> list[str]:
        """The choices in words."""
        return [
            f"{name.replace('_', ' ')}: {choice.value} ({choice.reason})"
            for name, choice in self.named().items()
        ]

    def values(self) -> dict[str, Any]:
        """Those that decide numbers, without their reasons."""
        names = ("device", "precision", "attn_implementation", "pinned_memory")
        return {name: getattr(self, name).value for name in names}

    def as_dict(self) -> dict[str, Any]:
        """The choices and the outcomes of the probes, for run.json."""
        named = {name: vars(choice) for name, choice in self.named().items()}
        return named | {"probes": list(self.probes)}

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the frozen weights."""
        from train.probes.reference import DTYPES

        return DTYPES[self.precision.value]


def choose(asked: Asked, image: BuildInfo | None, rotates: bool = False) -> DeviceChoices:
    """The device choices of a run; the device has computed what they say, unless `probe` is off.

    rotates: rotations are made by OFT's exact map. UserError (exit 69) where the device asked for, or built
    for, is not there, where torch is another than the image's, and where a probe fails what was asked for.
    """
    device = Choice(*find_device(asked.device, image))
    policy = policy_for(device.value, image)
    environment = _environment(policy)  # before the device is used
    from train.probes.pick import Probes

    probes = Probes(_torch_device(device.value), asked.probe)
    pinned = _pinned_memory(asked.pinned_memory, policy, probes)  # first, while the device is free
    precision = _precision(asked.precision, policy, probes)
    return DeviceChoices(
        device=device,
        precision=precision,
        attn_implementation=_attention(asked.attn_implementation, precision.value, policy, probes),
        pinned_memory=pinned,
        process_group=_process_group(policy),
        loss_scale=_loss_scale(asked.loss_scale, precision.value, policy),
        rotations=_rotations(probes) if rotates else Choice(None, "not made"),
        environment=environment,
        visible_devices=_visible(device.value, image),
        probes=tuple(outcome.as_dict() for outcome in probes.outcomes),
    )


def _torch_device(device_type: str) -> torch.device:
    """This process's own device: of several processes on a host each has another one."""
    import torch

    from train.loop.processes import local_rank

    index = local_rank()
    return torch.device(device_type) if device_type == "cpu" else torch.device(device_type, index)


def _origin(asked: str, candidates: tuple[str, ...], policy: DevicePolicy) -> tuple[list[str], str]:
    """The candidates, and why these."""
    return ([asked], "asked for") if asked != "auto" else (list(candidates), f"first of {policy.source}")


def _precision(asked: str, policy: DevicePolicy, probes: Probes) -> Choice:
    from train.probes import precision

    def probe(candidate: str) -> Any:
        if (candidate, probes.device.type) == ("fp32", "cpu"):
            return None
        return probes.outcome(f"precision {candidate}", lambda: precision.probe(candidate, probes.device))

    candidates, origin = _origin(asked, policy.precision, policy)
    if asked in policy.precision_on_request:
        origin += f", and {policy.source} takes it only so"
    return Choice(*probes.first("precision", candidates, origin, probe))


def _attention(asked: str, precision: str, policy: DevicePolicy, probes: Probes) -> Choice:
    from train.probes import attention

    def probe(candidate: str) -> Any:
        if (candidate, precision, probes.device.type) == ("eager", "fp32", "cpu"):
            return None
        name = f"attention {candidate}, {precision}"
        return probes.outcome(name, lambda: attention.probe(candidate, precision, probes.device))

    candidates, origin = _origin(asked, policy.attention, policy)
    variants = [variant for candidate in candidates for variant in attention.variants(candidate)]
    chosen, reason = probes.first("attn_implementation", variants, origin, probe)
    name = attention.use(chosen)
    return Choice(name, reason if chosen == name else f"{chosen}: {reason}")


def _pinned_memory(asked: str, policy: DevicePolicy, probes: Probes) -> Choice:
    from train.probes import pinned

    wanted = policy.pinned_memory if asked == "auto" else asked == "on"
    origin = policy.source if asked == "auto" else "asked for"
    if not wanted or probes.mode == "off":
        return Choice(wanted, origin)
    found = probes.outcome("pinned memory", lambda: pinned.probe(str(probes.device)))
    if found.passed:
        return Choice(True, f"{origin}; copies from it arrive")
    failed = f"pinned memory fails its probe: {found.words()}"
    if asked == "on":
        raise probes.refusal("pinned_memory", [failed])
    return Choice(False, failed)


def _rotations(probes: Probes) -> Choice:
    """How OFT inverts; UserError (exit 69) where this device gets the rotations wrong."""
    from train.probes import rotations

    method = rotations.method(probes.device)
    if probes.device.type == "cpu" or probes.mode == "off":
        return Choice(method, "what the CPU has" if probes.device.type == "cpu" else "probe is off")
    found = probes.outcome("rotations", lambda: rotations.probe(probes.device))
    if not found.passed:
        failed = [f"the exact map fails its probe: {found.words()}"]
        raise probes.refusal(
            "oft.cayley", failed, "--set oft.cayley=series makes rotations by products alone"
        )
    lacks = "the device inverts" if method == "solver" else "the device has no right torch.linalg.inv_ex"
    return Choice(method, f"{lacks}; {found.words()}")


def _process_group(policy: DevicePolicy) -> Choice:
    from train.loop.processes import environment_size

    if environment_size() < 2:
        return Choice(None, "one process")
    return Choice(policy.process_group, policy.source)


def _loss_scale(asked: float | str, precision: str, policy: DevicePolicy) -> Choice:
    if precision != "fp16":
        return Choice(None, f"{precision} needs none")
    if asked != "auto":
        return Choice({"dynamic": True, "initial": asked}, "asked for")
    if policy.loss_scale is None:
        return Choice({"dynamic": True, "initial": 65536}, "torch's own")
    return Choice(policy.loss_scale, policy.source)


def _environment(policy: DevicePolicy) -> Choice:
    others = set_environment(policy)
    return Choice(environment_now(policy) or None, "; ".join([policy.source, *others]))


def _visible(device_type: str, image: BuildInfo | None) -> Choice:
    name = image.visible_devices_variable if image and image.device_type == device_type else None
    value = os.environ.get(name) if name else None
    return Choice(f"{name}={value}" if value is not None else None, "as the environment says")


def versions() -> dict[str, str | None]:
    """The installed versions that decide numbers."""
    from importlib import metadata

    plugins = [point.dist.name for point in metadata.entry_points(group="torch.backends") if point.dist]
    found: dict[str, str | None] = {}
    stack = ("torch", "transformers", "peft", "accelerate", "tokenizers", "safetensors", "numpy")
    for name in (*stack, *plugins):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found
