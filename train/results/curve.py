"""The loss curve as a picture."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from train.data.cache import find_folder
from train.loop.lines import say
from train.loop.metrics import EvaluationMetrics, StepMetrics


def draw_loss(
    steps: Sequence[StepMetrics],
    path: Path,
    title: str,
    uniform: float,
    evaluations: Sequence[EvaluationMetrics] = (),
) -> None:
    """Write a PNG of loss (nats per target token) against step, and of each set's evaluation loss; `uniform`
    is ln V, drawn as a reference. A picture that cannot be drawn is a note.

    matplotlib's object interface: no global state, no display, the same bytes for the same numbers.
    """
    try:
        _give_folder()
        _draw(steps, path, title, uniform, evaluations)
    except Exception as fault:  # whatever it is: a run that has trained is not lost for its picture
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)  # half of one
        words = fault.strerror if isinstance(fault, OSError) else ""
        say([f"note: {path} is not drawn: {words or fault or repr(fault)}"])


def _give_folder() -> None:
    """A folder for matplotlib's fonts where it would ask for a home that is not there: an unknown uid."""
    try:
        Path.home()
    except RuntimeError:
        folder = find_folder([])
        place = folder / "matplotlib" if folder else Path(tempfile.gettempdir())
        os.environ.setdefault("MPLCONFIGDIR", str(place))


def _draw(
    steps: Sequence[StepMetrics],
    path: Path,
    title: str,
    uniform: float,
    evaluations: Sequence[EvaluationMetrics],
) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.plot([step.step for step in steps], [step.loss for step in steps], linewidth=1.5)
    names = list(evaluations[0].eval_loss) if evaluations else []
    for name in names:
        points = [(one.step, one.eval_loss[name]) for one in evaluations]
        label = f"evaluation: {name}".replace("$", r"\$")  # else it is read as a formula
        axes.plot(*zip(*points, strict=True), marker="o", markersize=3, linewidth=1, label=label)
    if uniform <= 2 * max(step.loss for step in steps):
        axes.axhline(
            uniform,
            color="grey",
            linestyle="--",
            linewidth=1,
            label=f"uniform guessing, ln V = {uniform:.2f}",
        )
    if axes.get_legend_handles_labels()[1]:
        axes.legend()
    axes.set(xlabel="step", ylabel="loss (nats per target token)")
    axes.set_title(title, parse_math=False)  # a folder's name may hold a dollar sign
    axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Software": None})
