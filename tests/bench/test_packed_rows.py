"""What the benchmark of packed rows computes; no times are taken here."""

from __future__ import annotations

import packed_rows
import pytest
import torch
from adapted import SMALL, make_model


@pytest.mark.parametrize("method", packed_rows.METHODS)
def test_every_method_does_the_work_of_its_samples_alone(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(packed_rows.LARGE, "vocab_size", SMALL["vocab_size"])
    model = make_model("LoRA", {**SMALL, "num_hidden_layers": 1})
    gradients = []
    monkeypatch.setattr(model, "zero_grad", lambda: gradients.append(_taken(model)))
    for way in (method, "alone"):
        packed_rows.stepper(model, [5, 9, 3], way)()
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


def _taken(model: torch.nn.Module) -> list[torch.Tensor]:
    learned = [parameter for parameter in model.parameters() if parameter.grad is not None]
    taken = [parameter.grad.clone() for parameter in learned if parameter.grad is not None]
    for parameter in learned:
        parameter.grad = None
    return taken
