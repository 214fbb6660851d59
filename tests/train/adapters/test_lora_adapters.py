"""What else is asked of a LoRA model is PEFT's: dropout, variants, other adapters, merging, files."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lora_twins import step, twins, with_lora
from oft_twins import (
    IDS,
    base_model,
    do_both,
    fill,
    gap,
    gradients,
    layer,
    logits_of,
    loss_of,
    trained,
)
from peft import PeftModel, get_peft_model_state_dict
from peft.helpers import disable_input_dtype_casting
from peft.tuners.lora.layer import Linear

from train.adapters import attach
from train.adapters.lora_layer import BatchedLinear, factors_of


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The layers that took their part from the model's factors."""
    from train.adapters import lora_layer

    found = []
    parts = lora_layer.Factors.parts

    def noted(self: Any, group: int, member: int, x: torch.Tensor) -> Any:
        found.append(self.groups[group][member])
        return parts(self, group, member, x)

    monkeypatch.setattr(lora_layer.Factors, "parts", noted)
    return found


FALLBACKS: dict[str, dict[str, Any]] = {
    "dropout": {"lora_dropout": 0.5},
    "DoRA": {"use_dora": True},
    "bias": {"lora_bias": True, "target_modules": ["q_proj", "k_proj", "v_proj"]},
}


@pytest.mark.parametrize("settings", FALLBACKS)
def test_what_is_more_than_two_products_is_peft(settings: str, computed: list[Any]) -> None:
    def work(model: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        torch.manual_seed(3)
        return logits_of(model), step(model)

    left, right = do_both(twins(**FALLBACKS[settings]), work)

    assert torch.equal(left[0], right[0])
    assert gap(left[1], right[1]) == 0 and not computed


def test_dropout_without_training_is_none(computed: list[Any]) -> None:
    plain, ours = twins(lora_dropout=0.5)

    left, right = do_both((plain.eval(), ours.eval()), step)

    assert gap(left, right) < 1e-6 and len(computed) == 14


def second(model: Any, name: str = "second", **settings: Any) -> None:
    """Another adapter with weights of its own, and active."""
    config = copy.deepcopy(model.peft_config["default"])
    for key, value in settings.items():
        setattr(config, key, value)
    model.add_adapter(name, config)
    model.set_adapter(name)
    fill(model, 0.1, seed=9)


def on_second(model: Any) -> None:
    second(model, r=2)


def back_on_first(model: Any) -> None:
    second(model)
    step(model)
    model.zero_grad()
    model.set_adapter("default")


def both_active(model: Any) -> None:
    second(model)
    model.base_model.set_adapter(["default", "second"])


def deleted_and_added_again(model: Any) -> None:
    second(model)
    model.delete_adapter("default")
    config = copy.deepcopy(model.peft_config["second"])
    config.r = 6
    model.add_adapter("default", config)
    model.set_adapter("default")
    fill(model, 0.2, seed=7)


def scaled(model: Any) -> None:
    layer(model, "q_proj").set_scale("default", 5.0)


def one_layer_switched(model: Any) -> None:
    second(model)
    model.set_adapter("default")
    layer(model, "k_proj").set_adapter("second")


def merged_in_one_layer(model: Any) -> None:
    layer(model, "k_proj").merge()


def trained_bases(model: Any) -> None:
    layer(model, "v_proj").base_layer.weight.requires_grad_()


def hooked_base(model: Any) -> None:
    layer(model, "v_proj").base_layer.register_forward_hook(lambda module, inputs, output: output * 2)


def base_of_another_dtype(model: Any) -> None:
    layer(model, "o_proj").base_layer.register_forward_hook(lambda module, inputs, output: output.double())
    layer(model, "o_proj").register_forward_hook(lambda module, inputs, output: output.float())


def without_casting(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, Linear):
            module.cast_input_dtype_enabled = False


ACTIONS = [
    on_second,
    back_on_first,
    both_active,
    deleted_and_added_again,
    scaled,
    one_layer_switched,
    merged_in_one_layer,
    trained_bases,
    hooked_base,
    base_of_another_dtype,
    without_casting,
]


@pytest.mark.parametrize("action", ACTIONS)
def test_after_a_change_outputs_and_gradients_are_those_of_peft(action: Callable[[Any], None]) -> None:
    pair = twins()
    before = logits_of(pair[1])

    do_both(pair, action)

    left, right = do_both(pair, logits_of)
    assert (left - right).abs().max() < 2e-6
    for model in pair:
        loss_of(model).backward()
    mine, its = ({name: g for name, g in gradients(model).items() if g.abs().max() > 0} for model in pair)
    assert gap(mine, its) < 2e-6
    if action not in (
        back_on_first,
        merged_in_one_layer,
        trained_bases,
        base_of_another_dtype,
        without_casting,
    ):
        assert (right - before).abs().max() > 1e-3


def test_disabled_and_mixed_adapters_are_peft(computed: list[Any]) -> None:
    def work(model: Any) -> list[torch.Tensor]:
        with model.disable_adapter():
            found = [logits_of(model)]
        second(model)
        model.set_adapter("default")
        with torch.no_grad():
            mixed = model.eval()(input_ids=IDS, adapter_names=["second", "__base__"])
        return [*found, mixed.logits]

    for left, right in zip(*do_both(twins(), work), strict=True):
        assert torch.equal(left, right)
    assert not computed


def test_casting_switched_off_is_peft(computed: list[Any]) -> None:
    _, ours = twins()

    with disable_input_dtype_casting(ours):
        loss_of(ours)
    assert not computed
    loss_of(ours)
    assert len(computed) == 14


def test_merging_is_peft() -> None:
    def work(model: Any) -> list[torch.Tensor]:
        model.merge_adapter()
        merged = [logits_of(model), layer(model, "gate_proj").base_layer.weight.detach().clone()]
        model.unmerge_adapter()
        return [*merged, logits_of(model), logits_of(model.merge_and_unload())]

    pair = twins()
    expected = logits_of(pair[0])
    for left, right in zip(*do_both(pair, work), strict=True):
        assert (left - right).abs().max() < 1e-6
    _, ours = twins()
    assert (logits_of(ours.merge_and_unload()) - expected).abs().max() < 1e-5


def test_files_go_both_ways_between_peft_and_ours(tmp_path: Path) -> None:
    plain, ours = twins()
    assert list(plain.state_dict()) == list(ours.state_dict())
    assert list(get_peft_model_state_dict(plain)) == list(get_peft_model_state_dict(ours))
    assert list(trained(plain)) == list(trained(ours))
    ours.save_pretrained(str(tmp_path / "ours"))
    plain.save_pretrained(str(tmp_path / "plain"))

    by_peft = PeftModel.from_pretrained(base_model(), str(tmp_path / "ours"))
    by_us = attach.batched(PeftModel.from_pretrained(base_model(), str(tmp_path / "plain")))

    assert factors_of(by_peft) is None and factors_of(by_us) is not None
    expected = logits_of(plain)
    for model in (by_peft, by_us):
        assert (logits_of(model) - expected).abs().max() < 1e-6
    assert (logits_of(base_model()) - expected).abs().max() > 1e-2


@pytest.mark.parametrize("fields", [{"do_sample": True, "top_k": 20}, {"num_beams": 3}])
def test_generation_equals_peft(fields: dict[str, Any]) -> None:
    def work(model: Any) -> torch.Tensor:
        step(model)
        fill(model, 0.1, seed=6)  # what the step used is of no use any more
        torch.manual_seed(11)
        return model.eval().generate(input_ids=IDS[:, :4], max_new_tokens=6, **fields)

    assert torch.equal(*do_both(twins(), work))


def test_layers_of_other_kinds_stay_peft() -> None:
    def made() -> Any:
        return with_lora(base_model(), target_modules=["embed_tokens", "q_proj"])

    plain, ours = made(), attach.batched(made())

    kinds = {name: type(module) for name, module in ours.named_modules()}
    assert BatchedLinear in kinds.values()
    assert [kind.__name__ for name, kind in kinds.items() if name.endswith("embed_tokens")] == ["Embedding"]
    assert gap(step(plain), step(ours)) < 1e-6


def test_a_model_on_several_devices_stays_peft() -> None:
    model: Any = with_lora(base_model())
    layer(model, "q_proj").to("meta")

    assert factors_of(attach.batched(model)) is None
