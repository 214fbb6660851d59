"""However the weights change, the next forward turns by the new ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from oft_twins import IDS, fill, logits_of, loss_of, trained, twins


def stepped(model: Any, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()


def fused(model: Any) -> None:
    stepped(model, torch.optim.AdamW(trained(model).values(), lr=1e-2, eps=1e-3, fused=True))


def foreach(model: Any) -> None:
    stepped(model, torch.optim.AdamW(trained(model).values(), lr=1e-2, eps=1e-3, foreach=True))


def in_backward(model: Any) -> None:
    """Each parameter is stepped as soon as its gradient is there."""
    optimizers = {p: torch.optim.SGD([p], lr=1.0) for p in trained(model).values()}

    def step(parameter: torch.Tensor) -> None:
        optimizers[parameter].step()
        parameter.grad = None

    for parameter in optimizers:
        parameter.register_post_accumulate_grad_hook(step)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    for _ in range(2):
        loss_of(model).backward()


def data(model: Any) -> None:
    fill(model, 0.1, seed=3)


def data_replaced(model: Any) -> None:
    for parameter in trained(model).values():
        parameter.data = parameter.data * 2


def one_only(model: Any) -> None:
    list(trained(model).values())[-1].data.mul_(3)


def changed_state(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor * 2 if ".oft_R." in name else tensor for name, tensor in model.state_dict().items()}


def loaded(model: Any) -> None:
    model.load_state_dict(changed_state(model))


def assigned(model: Any) -> None:
    model.load_state_dict(changed_state(model), assign=True)


def set_by_peft(model: Any) -> None:
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    state = {name: tensor * 2 for name, tensor in get_peft_model_state_dict(model).items()}
    set_peft_model_state_dict(model, state)


def moved(model: Any) -> None:
    model.to(torch.float64).to("cpu", torch.float32)
    data(model)
    model.to("cpu")


def half(model: Any) -> None:
    model.to(torch.bfloat16)


def replaced_module_parameters(model: Any) -> None:
    """As loading onto another kind of device does: other parameter objects."""
    for module in model.modules():
        if hasattr(module, "n_elements"):
            module.weight = torch.nn.Parameter(module.weight.detach() * 2)


CHANGES: list[Callable[[Any], None]] = [
    fused,
    foreach,
    in_backward,
    data,
    data_replaced,
    one_only,
    loaded,
    assigned,
    set_by_peft,
    moved,
    half,
    replaced_module_parameters,
]


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("change", CHANGES)
def test_changed_weights_turn_at_once(change: Callable[[Any], None], mode: str) -> None:
    found = []
    for model in twins():
        model.train(mode == "train")
        before = logits_of(model)
        change(model)
        found.append(logits_of(model))
        assert (found[-1] - before).abs().max() > 1e-3
    dtype = torch.bfloat16 if change is half else torch.float32
    tolerance = 2e-6 if dtype == torch.float32 else 4 * torch.finfo(dtype).eps
    assert (found[0] - found[1]).abs().max() < tolerance


@pytest.mark.parametrize("change", [data, assigned, replaced_module_parameters, half])
def test_training_goes_on_after_the_change(change: Callable[[Any], None]) -> None:
    losses = []
    for model in twins():
        loss_of(model).backward()
        change(model)
        model.zero_grad()
        fused(model)
        assert all(parameter.grad is not None for parameter in trained(model).values())
        losses.append(loss_of(model).item())
    assert losses[1] == pytest.approx(losses[0], abs=2e-2 if change is half else 1e-5)


def test_a_double_precision_model_is_turned_in_double_precision() -> None:
    """The map itself stays fp32: that is what the weights are."""
    results = []
    for model in twins():
        model.get_base_model().double()
        for parameter in trained(model).values():
            parameter.data = parameter.data.float()
        results.append(model(input_ids=IDS).logits)
    assert results[1].dtype == torch.float64
    assert (results[0] - results[1]).abs().max() < 1e-6
