"""The loss curve as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from train.loop.metrics import StepMetrics


def draw_loss(steps: Sequence[StepMetrics], path: Path, title: str, uniform: float) -> None:
    """Write a PNG of loss (nats per target token) against step; `uniform` is ln V, drawn as a reference.

    matplotlib's object interface: no global state, no display, the same bytes for the same numbers.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot([step.step for step in steps], [step.loss for step in steps], linewidth=1.5)
    if uniform <= 2 * max(step.loss for step in steps):
        axes.axhline(
            uniform,
            color="grey",
            linestyle="--",
            linewidth=1,
            label=f"uniform guessing, ln V = {uniform:.2f}",
        )
        axes.legend()
    axes.set(xlabel="step", ylabel="loss (nats per target token)")
    axes.set_title(title, parse_math=False)  # a folder's name may hold a dollar sign
    axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Software": None})
