"""The first candidate of the device policy that passes its probe; a wish that fails is an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from train.errors import EXIT_UNAVAILABLE, UserError
from train.probes import kept
from train.probes.outcome import Outcome

if TYPE_CHECKING:
    import torch

REFERENCE = "fp32 products on the CPU are what the probes compare with"
NOT_PROBED = "probe is off"


class Probes:
    """The probes of one device: each runs once, or was run before and kept.

    mode: the recipe's `probe`. outcomes: of this run, in their order, for run.json.
    """

    def __init__(self, device: torch.device, mode: str) -> None:
        self.device = device
        self.mode = mode
        self.outcomes: list[Outcome] = []
        # On the CPU the probes take less time than their file.
        is_kept = mode != "off" and device.type != "cpu"
        self.path = kept.place(kept.identity(device.type, device.index or 0)) if is_kept else None
        self.known = kept.read(self.path) if self.path and mode != "again" else {}

    def outcome(self, name: str, probe: Callable[[], Outcome]) -> Outcome:
        """That of the probe `name`, from this process or an earlier one."""
        found = self.known.get(name)
        if found is None:
            found = self.known[name] = probe()
            if self.path:  # a fault can be of the moment: no memory, a busy device
                kept.write(self.path, {key: one for key, one in self.known.items() if not one.fault})
        if found not in self.outcomes:
            self.outcomes.append(found)
        return found

    def first(
        self,
        what: str,
        candidates: Sequence[str],
        origin: str,
        probe: Callable[[str], Outcome | None],
    ) -> tuple[str, str]:
        """The first candidate that passes, and why. origin: why these are the candidates. probe: None for the
        reference itself, which needs none.

        UserError (exit 69) with all figures where every candidate fails.
        """
        if self.mode == "off":
            return candidates[0], f"{origin}; {NOT_PROBED}"
        failed: list[str] = []
        for candidate in candidates:
            found = probe(candidate)
            if found is None or found.passed:
                return candidate, "; ".join([origin, *failed, found.words() if found else REFERENCE])
            failed.append(f"{candidate} fails its probe: {found.words()}")
        raise self.refusal(what, failed)

    def refusal(self, what: str, failed: Sequence[str], cure: str = "") -> UserError:
        """The error where nothing is left, with a line for each candidate."""
        cure = (
            cure
            or f"leave {what} out, where it was asked for: the first that passes is taken; or --device cpu"
        )
        return UserError(
            "\n".join(f"{what}: on {self.device}: {line}" for line in failed),
            f"{cure}; --set probe=again (eval, generate, merge: --probe again) measures anew, probe=off "
            "trusts the device",
            EXIT_UNAVAILABLE,
        )
