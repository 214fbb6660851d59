"""Whether the rotations of a run are still rotations, and what is done where they are not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from train.adapters import oft
from train.errors import EXIT_TRAINING, UserError

if TYPE_CHECKING:
    import torch
    from peft import PeftModel

WARN = 0.05
STOP = 0.5
"""Of the largest |R R^T - I|. With five terms it is at most 1 - (1 - norm(Q)^4)^2 while norm(Q) < 1, and
grows without bound above."""


@dataclass(frozen=True)
class Drift:
    """How far the rotations of the last forward were from being orthogonal.

    orthogonality_error: the largest |R R^T - I|. skew_norm: the largest spectral norm of Q. cayley: how R was
    made of Q.
    """

    orthogonality_error: float
    skew_norm: float
    cayley: str


class DriftWatch:
    """Reads the drift of a model, and ends or mends a run whose rotations have drifted.

    on_drift: `stop`, or `exact` to go over to the exact map. Models without rotations are left alone.
    """

    def __init__(self, model: PeftModel, on_drift: str) -> None:
        from train.adapters.oft_layer import rotations_of

        self.model = model
        self.on_drift = on_drift
        self.rotations_of = rotations_of
        self.has_warned = False
        self.before_conversion: Drift | None = None

    def read(self) -> Drift | None:
        """The drift of the last forward; None where nothing rotates."""
        if self.before_conversion:  # the rotations of that forward are gone
            drift, self.before_conversion = self.before_conversion, None
            return drift
        rotations = self.rotations_of(self.model)
        if rotations is None:
            return None
        form = "exact" if oft.is_exact(self.model) else "series"
        return Drift(rotations.orthogonality_error(), rotations.skew_norm(), form)

    def before_step(self, step: int, optimizer: torch.optim.Optimizer | None) -> list[str]:
        """What is to be said before the optimizer's step number `step`, with the rotations still those that
        its gradients are of.

        A series only: the exact map does not drift. With `on_drift: exact` the run goes over to the exact map
        above WARN: weights, gradients and the optimizer's first moments are converted. Else UserError (exit
        70) above STOP.
        """
        rotations = self.rotations_of(self.model)
        if rotations is None or oft.is_exact(self.model):
            return []
        error = rotations.orthogonality_error()
        if not error > WARN:
            return []
        figures = f"step {step}: largest |R R^T - I| is {error:.2g}"
        if self.on_drift == "exact":
            # At once: here the outputs move by a few percent of what the adapter does, at STOP by a third.
            self.before_conversion = self.read()
            oft.convert_cayley(self.model, exact=True, optimizer=optimizer)
            jump = "; this far out the outputs jump: lower learning_rate" if error > STOP else ""
            return [f"warning: {figures}: the series drifts; exact Cayley map from here on{jump}"]
        if error <= STOP:
            if self.has_warned:
                return []
            self.has_warned = True
            return [f"warning: {figures}: the series drifts; oft.cayley=exact does not"]
        raise _no_rotation(figures)

    def after_training(self, error: float) -> list[str]:
        """What is to be said of the trained weights, which no step comes to look at any more.

        `error`: their largest |R R^T - I|. UserError (exit 70) above STOP.
        """
        figures = f"after the last step: largest |R R^T - I| is {error:.2g}"
        if not error <= STOP:
            raise _no_rotation(figures)
        if error > WARN:
            return [
                f"warning: {figures}: train merge will refuse this adapter; oft.cayley=exact does not drift"
            ]
        return []


def _no_rotation(figures: str) -> UserError:
    return UserError(
        f"{figures}, {STOP} is allowed: the series is no rotation any more",
        "take oft.cayley=exact, which is orthogonal at any learning rate; or a lower learning_rate; or, with "
        "oft.cayley=series, oft.on_drift=exact to go over in the middle",
        EXIT_TRAINING,
    )
