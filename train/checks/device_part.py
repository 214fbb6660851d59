"""The numeric half of verify's device part: what the device computes, against the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train.checks.report import CheckFailed, Skipped
from train.detect import is_available, require_own_torch
from train.errors import UserError
from train.image import BuildInfo
from train.policy import DevicePolicy, policy_for

if TYPE_CHECKING:
    import torch

    from train.probes.outcome import Outcome

Checks = Iterator[tuple[str, Callable[[], str]]]
CURVE_TOLERANCES = {"fp32": 0.01, "fp16": 0.02, "bf16": 0.04}


def device_checks(image: BuildInfo | None, folder: Path, device_type: str | None = None) -> Checks:
    """Name and function of each check, in the order in which they make sense. `device_type`: another than
    the image's; the CPU, which is skipped else, is checked where it is named.

    Each asks by itself whether there is a device: where there is none, every one says so.
    """
    named = device_type or (image.device_type if image else "cpu")
    policy = policy_for(named, image)
    there = partial(require_device, named, image, device_type is not None)
    yield "seen", lambda: devices_are_seen(there(), image)
    for precision in (*policy.precision, *policy.precision_on_request):
        yield f"products {precision}", partial(_after, there, products_are_right, precision)
        for attention in policy.attention:
            name = f"{attention} {precision}"
            yield name, partial(_after, there, attention_is_right, attention, precision)
    yield "pinned memory", partial(_after, there, pinned_memory_works, policy)
    yield "rotations", partial(_after, there, rotations_are_right)
    yield "all-reduce", partial(_after, there, all_devices_reduce, policy)
    for adapter in ("lora", "oft"):
        yield f"{adapter} follows the cpu", partial(_after, there, curve_follows_cpu, folder, adapter)


def require_device(device_type: str, image: BuildInfo | None, is_named: bool) -> torch.device:
    """The device; Skipped where there is none, or where it is the CPU, which all the others are compared
    with.
    """
    from train.checks.verify import importable

    importable(image)
    import torch

    if device_type == "cpu" and not is_named:
        raise Skipped("no device: the cpu needs no check of its own beyond the build part")
    if not is_available(device_type):
        raise Skipped(f"no device: torch finds no {device_type} here")
    return torch.device(device_type)


def _after(there: Callable[[], Any], check: Callable[..., str], *arguments: Any) -> str:
    return check(there(), *arguments)


def devices_are_seen(device: torch.device, image: BuildInfo | None) -> str:
    """The image's own torch finds devices of the type, and each of them answers."""
    import torch

    if image is not None:
        require_own_torch(image)
    if device.type == "cpu":
        return f"torch finds cpu, {torch.get_num_threads()} threads"
    module: Any = getattr(torch, device.type)
    names = []
    for index in range(module.device_count()):
        one = torch.ones(2, device=torch.device(device.type, index))
        if one.sum().item() != 2.0:
            raise CheckFailed(f"{device.type}:{index}: 1 + 1 is {one.sum().item()}")
        names.append(f"{index}: {module.get_device_name(index)}")
    return f"torch finds {len(names)} {device.type}: {', '.join(names)}"


def products_are_right(device: torch.device, precision: str) -> str:
    """A product, and a block with its gradients. That a run has a fallback is no excuse."""
    from train.probes.precision import probe

    return _judged(probe(precision, device))


def attention_is_right(device: torch.device, attention: str, precision: str) -> str:
    """An implementation in a precision, as it is or with what training makes of it."""
    from train.probes.attention import probe, use, variants

    failed: list[str] = []
    try:
        for variant in variants(attention):
            found = probe(variant, precision, device)
            if found.passed:
                return "; ".join(
                    [*failed, found.words() if variant == attention else f"{variant}: {found.words()}"]
                )
            failed.append(f"{variant}: {found.words()}")
    finally:
        use("sdpa")
    raise CheckFailed("; ".join(failed))


def pinned_memory_works(device: torch.device, policy: DevicePolicy) -> str:
    """Copies from pinned memory arrive, where the policy uses it."""
    from train.probes.pinned import probe

    if not policy.pinned_memory:
        raise Skipped(f"{policy.source} does not use it")
    found = probe(str(device))
    if not found.passed:
        raise CheckFailed(found.words())
    return "copies from it arrive"


def rotations_are_right(device: torch.device) -> str:
    """OFT's exact map, forward and backward."""
    from train.probes.rotations import method, probe

    return f"by {method(device)}: {_judged(probe(device))}"


def _judged(found: Outcome) -> str:
    if not found.passed:
        raise CheckFailed(found.words())
    return found.words()


def all_devices_reduce(device: torch.device, policy: DevicePolicy, num_processes: int | None = None) -> str:
    """One process per device sums a tensor over all of them; two processes on the CPU."""
    import torch

    from train.checks.reduce import reduce_everywhere

    found = 2 if device.type == "cpu" else getattr(torch, device.type).device_count()
    count = num_processes or found
    if count < 2:
        raise Skipped(f"one {device.type} only: there is nothing to reduce over")
    return reduce_everywhere(device.type, policy.process_group, count)


def curve_follows_cpu(device: torch.device, folder: Path, adapter: str) -> str:
    """20 steps, in the precision that a run takes and in fp32, have the loss curve of fp32 on the CPU."""
    from train.checks import training

    bench = training.Bench(folder)
    reference = training.curve(bench, adapter, "cpu", "fp32")
    details: list[str] = []
    faults: list[str] = []
    for precision in ("auto", "fp32"):
        try:
            found = training.curve(bench, adapter, device.type, precision)
        except UserError as fault:
            faults.append(f"precision {precision}: {fault.message}")
            continue
        apart = max(
            abs(one - other) / other for one, other in zip(found.losses, reference.losses, strict=True)
        )
        allowed = CURVE_TOLERANCES[found.precision]
        words = f"{found.precision}: losses at most {apart:.1%} apart, {allowed:.0%} is allowed"
        (details if apart <= allowed else faults).append(words)
    if faults:
        raise CheckFailed("; ".join(faults + details))
    return "; ".join(dict.fromkeys(details))
