"""Two devices start equal: first weights, order and dropout depend on the seed, and on no device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.train.loop.conftest import exact, go
from train.adapters.initial import initial_adapter
from train.config import RunConfig
from train.loop.model import load_model


class Draws(TorchDispatchMode):
    """Notes every draw of random numbers: its device and the numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[torch.Tensor] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        result = function(*arguments, **(named or {}))
        if torch.Tag.nondeterministic_seeded in function.tags:
            self.found.append(result.clone())
        return result


def drawn(model: Path, adapter: str, device_type: str, default: str = "cpu") -> list[torch.Tensor]:
    """What is drawn for a fresh adapter on its way to a device."""
    fields = {"model": model, "data": "d", "output": "o", "seed": 5}
    config = RunConfig.model_validate({"adapter": adapter, **fields})
    base = load_model(model, torch.float32, "sdpa")
    with torch.device(default), Draws() as draws:
        adapted, _ = initial_adapter(base, config, device_type)
    assert {parameter.device.type for parameter in adapted.parameters()} == {device_type}
    return draws.found


def test_first_weights_are_drawn_on_the_cpu_whatever_the_device_is(tiny: Path) -> None:
    before = torch.random.get_rng_state()
    first = drawn(tiny, "lora", "cpu")
    assert first and torch.equal(before, torch.random.get_rng_state())
    torch.rand(1000)
    for other in (
        drawn(tiny, "lora", "cpu"),
        drawn(tiny, "lora", "meta"),
        drawn(tiny, "lora", "meta", "meta"),
    ):
        assert len(other) == len(first)
        assert all(tensor.device.type == "cpu" for tensor in other)
        assert all(torch.equal(one, two) for one, two in zip(first, other, strict=True))


def test_oft_begins_at_no_rotation_on_every_device(tiny: Path) -> None:
    config = RunConfig.model_validate({"adapter": "oft", "model": tiny, "data": "d", "output": "o"})
    adapted, _ = initial_adapter(load_model(tiny, torch.float32, "sdpa"), config, "cpu")
    weights = [parameter for parameter in adapted.parameters() if parameter.requires_grad]
    assert weights and not any(bool(weight.any()) for weight in weights)


def test_what_was_drawn_before_changes_neither_order_nor_dropout(
    recipe: dict[str, Any],
    few_rows: Path,
    tmp_path: Path,
    without_drawing: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from train.loop import prepare

    fields = {"lora": {"lora_dropout": 0.3}, "data": few_rows, "per_device_train_batch_size": 1}
    go(recipe, **fields)
    loading = prepare.load_model

    def drawing(*arguments: Any) -> Any:
        model = loading(*arguments)
        torch.rand(1000)
        return model

    monkeypatch.setattr(prepare, "load_model", drawing)
    go(recipe, **fields, output=tmp_path / "again")
    assert exact(recipe["output"]) == exact(tmp_path / "again")
    go(recipe, **fields, output=tmp_path / "other", seed=1)
    assert exact(recipe["output"])["metrics"] != exact(tmp_path / "other")["metrics"]
