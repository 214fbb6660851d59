"""What a probe found: figures and what is allowed, or the words of the fault that stopped it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

TOLERANCES = {"fp32": 1e-4, "fp16": 2.0**-8, "bf16": 2.0**-5}
"""The largest distance of a probe, in parts of the reference's own size (Frobenius norms).

16 bits: four spacings of the format (2^-10 for fp16, 2^-7 for bf16). The roundings of a block have random
signs, so a sound device stays near one spacing; one that loses two bits more is beyond four. fp32: a sound
device is below 1e-5; products of ten bits (TF32 and its like) are at 5e-4, and are not fp32.
"""


@dataclass(frozen=True)
class Outcome:
    """One probe of one candidate. figures: distances by what was compared, each below `allowed` if it passed;
    a figure that is no number is text. fault: the words of an exception, empty where there was none. kept:
    measured by an earlier run.
    """

    probe: str
    passed: bool
    figures: dict[str, float | str] = field(default_factory=dict)
    allowed: float | None = None
    fault: str = ""
    seconds: float = 0.0
    kept: bool = False

    def words(self) -> str:
        """The figures for a reader."""
        if self.fault or not self.figures:
            return self.fault
        shown = ", ".join(f"{name} {_short(value)}" for name, value in self.figures.items())
        return f"{shown} apart, {self.allowed:.0e} is allowed" if self.allowed is not None else shown

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.0e}"


def measure(probe: str, allowed: float, distances: Callable[[], dict[str, float]]) -> Outcome:
    """The outcome of comparing: a fault of the device (no kernel, no memory) is a failed candidate."""
    started = time.perf_counter()
    try:
        found = distances()
    except Exception as fault:  # a device that lacks something raises what its vendor likes
        return Outcome(probe, False, fault=one_line(fault), seconds=time.perf_counter() - started)
    passed = all(value <= allowed for value in found.values())  # a NaN is not
    figures: dict[str, float | str] = {
        name: value if math.isfinite(value) else str(value) for name, value in found.items()
    }
    return Outcome(probe, passed, figures, allowed, seconds=time.perf_counter() - started)


def one_line(fault: BaseException) -> str:
    """The kind of a fault and the first line of its words."""
    words = str(fault).strip().splitlines()
    return f"{type(fault).__name__}: {words[0]}" if words else type(fault).__name__


def distance(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """|found - wanted| / |wanted| as Frobenius norms, in double precision on the CPU; inf where it is no
    number.
    """
    found, wanted = found.detach().cpu().double(), wanted.detach().double()
    apart = float((found - wanted).norm() / wanted.norm())
    return apart if math.isfinite(apart) else math.inf
