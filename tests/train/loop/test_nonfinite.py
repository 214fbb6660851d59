"""Figures that are not finite: located before the step that would ruin the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.train.loop.broken import Step, stopped
from train.loop.callback import RunCallback

pytestmark = pytest.mark.usefixtures("without_drawing")


@pytest.mark.parametrize("logging_steps", [1, 3])
def test_an_output_that_is_not_finite_is_located_to_its_module_and_rows(
    short: dict[str, Any], at_each_step: Callable[[Step], None], logging_steps: int
) -> None:
    def break_it(callback: RunCallback, step: int) -> None:
        if step == 3:
            model: Any = callback.trainer.model
            layer = model.get_submodule("base_model.model.model.layers.1.mlp")
            layer.register_forward_hook(lambda module, inputs, output: output * float("nan"))

    at_each_step(break_it)
    fault = stopped(short, save_steps=100, logging_steps=logging_steps)
    assert fault.message.startswith("step 3: loss is nan, grad_norm is nan\n")
    assert "is that of base_model.model.model.layers.1.mlp (Qwen2MLP)\nin the batch of\n" in fault.message
    assert f"{short['data']}:4" in fault.message
    # What was learned before is kept: the weights are those of the step before.
    weights = short["output"] / "checkpoints" / "step-2" / "adapter_model.safetensors"
    assert weights.exists()


def test_a_gradient_that_is_not_finite_is_located_to_its_parameter(
    short: dict[str, Any], at_each_step: Callable[[Step], None]
) -> None:
    def break_it(callback: RunCallback, step: int) -> None:
        if step == 2:
            named = callback.gradients.parameters
            name = next(name for name in named if "layers.0.mlp.up_proj.lora_B" in name)
            named[name].register_hook(lambda gradient: gradient / 0)

    at_each_step(break_it)
    fault = stopped(short)
    assert fault.message.startswith("step 2: grad_norm is nan\n")
    assert "layers.0.mlp.up_proj.lora_B.default.weight" in fault.message


def test_weights_that_are_ruined_already_are_said_to_be(
    short: dict[str, Any], at_each_step: Callable[[Step], None]
) -> None:
    def break_it(callback: RunCallback, step: int) -> None:
        if step == 4:
            next(iter(callback.gradients.parameters.values())).data.fill_(float("nan"))

    at_each_step(break_it)
    fault = stopped(short, max_steps=6, logging_steps=3)
    assert "the adapter holds NaN since a step after 3:\n" in fault.message
    assert not (short["output"] / "checkpoints" / "step-5").exists()
