"""The curve shows evaluations beside the steps, whatever their sets are called."""

from __future__ import annotations

from pathlib import Path

from train.loop.metrics import EvaluationMetrics, StepMetrics
from train.results.curve import draw_loss


def test_each_evaluation_set_is_a_line_of_its_own(tmp_path: Path) -> None:
    steps = [StepMetrics(step, step / 4, 3.0 - step / 4, 1e-3, 1.0, 10, 5, 0.1, 9) for step in range(1, 5)]
    evaluations = [EvaluationMetrics(step, step / 4, {"a": 3.0, "b$\\frac{$": 2.5}, 0.1) for step in (2, 4)]
    pictures = []
    for number in range(3):
        path = tmp_path / f"{number}.png"
        draw_loss(steps, path, "title", 6.0, evaluations[:number])
        pictures.append(path.read_bytes())
    assert len(set(pictures)) == 3
