"""All that PEFT does with adapters works on the batched model as on PEFT's own."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from oft_twins import IDS, base_model, do_both, fill, gap, gradients, logits_of, loss_of, trained, twins
from peft import OFTConfig, PeftModel, get_peft_model_state_dict

from train.adapters import attach
from train.adapters.oft_layer import BatchedLinear, rotations_of


def second(model: Any, name: str = "second", std: float = 0.1, **settings: Any) -> None:
    """Another adapter with weights of its own, and active."""
    config = copy.deepcopy(model.peft_config[next(iter(model.peft_config))])
    for key, value in settings.items():
        setattr(config, key, value)
    model.add_adapter(name, config)
    model.set_adapter(name)
    fill(model, std, seed=9)


def disabled(model: Any) -> torch.Tensor:
    with model.disable_adapter():
        return logits_of(model)


def enabled_again(model: Any) -> torch.Tensor:
    disabled(model)
    return logits_of(model)


def on_second(model: Any) -> torch.Tensor:
    second(model, oft_block_size=8)
    return logits_of(model)


def back_on_first(model: Any) -> torch.Tensor:
    second(model)
    logits_of(model)
    model.set_adapter("default")
    return logits_of(model)


def deleted_and_added_again(model: Any) -> torch.Tensor:
    second(model)
    model.delete_adapter("default")
    second(model, "default", 0.15)
    return logits_of(model)


def deleted_and_added_with_other_blocks(model: Any) -> torch.Tensor:
    second(model)
    model.delete_adapter("default")
    second(model, "default", 0.15, oft_block_size=8)
    return logits_of(model)


def last_one_deleted(model: Any) -> torch.Tensor:
    model.delete_adapter("default")
    return logits_of(model.base_model.model)  # PEFT's wrapper cannot be called any more


def both_active(model: Any) -> torch.Tensor:
    second(model)
    model.base_model.set_adapter(["default", "second"])
    return logits_of(model)


def merged_and_disabled(model: Any) -> torch.Tensor:
    model.merge_adapter()
    return disabled(model)


ACTIONS = [
    disabled,
    enabled_again,
    on_second,
    back_on_first,
    deleted_and_added_again,
    deleted_and_added_with_other_blocks,
    last_one_deleted,
    both_active,
    merged_and_disabled,
]


@pytest.mark.parametrize("action", ACTIONS)
def test_adapters_are_switched_as_peft_switches_them(action: Callable[[Any], torch.Tensor]) -> None:
    pair = twins()
    before = logits_of(pair[1])
    results = do_both(pair, action)
    assert (results[0] - results[1]).abs().max() < 2e-6
    if action not in (enabled_again, back_on_first):
        assert (results[1] - before).abs().max() > 1e-2


def test_a_second_adapter_trains_and_can_be_batched_in_its_turn() -> None:
    pair = twins()
    do_both(pair, second)
    attach.batched(pair[1])
    served = {name for name, module in pair[1].named_modules() if isinstance(module, BatchedLinear)}
    assert {module.rotated_adapter for module in pair[1].modules() if isinstance(module, BatchedLinear)} == {
        "second"
    }
    assert len(served) == 14
    do_both(pair, lambda model: loss_of(model).backward())
    assert gap(*do_both(pair, gradients)) < 1e-6


def test_batching_twice_hooks_once() -> None:
    _, ours = twins()
    before = logits_of(ours)
    hooks = len(ours._forward_pre_hooks), len(ours._forward_hooks)
    attach.batched(ours)
    assert (len(ours._forward_pre_hooks), len(ours._forward_hooks)) == hooks == (1, 1)
    assert torch.equal(logits_of(ours), before)


@pytest.mark.parametrize(
    "settings",
    [{}, {"use_cayley_neumann": True}, {"block_share": True}, {"coft": True, "eps": 0.1}],
    ids=["exact", "series", "shared", "coft"],
)
def test_files_go_both_ways_between_peft_and_ours(tmp_path: Path, settings: dict[str, Any]) -> None:
    plain, ours = twins(**settings)
    assert list(get_peft_model_state_dict(plain)) == list(get_peft_model_state_dict(ours))
    ours.save_pretrained(str(tmp_path / "ours"))
    plain.save_pretrained(str(tmp_path / "plain"))
    files = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("ours", "plain")]
    assert files[0] == files[1]
    by_peft = PeftModel.from_pretrained(base_model(), str(tmp_path / "ours"))
    assert not any(isinstance(module, BatchedLinear) for module in by_peft.modules())
    by_us = attach.batched(PeftModel.from_pretrained(base_model(), str(tmp_path / "plain")))
    assert rotations_of(by_us) is not None
    expected = logits_of(plain.eval())
    for model in (by_peft, by_us):
        assert (logits_of(model) - expected).abs().max() < 1e-6
    assert (logits_of(base_model()) - expected).abs().max() > 1e-2


def deep_copied(model: Any) -> Any:
    return copy.deepcopy(model)


def saved_by_torch(model: Any) -> Any:
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


def pickled(model: Any) -> Any:
    return pickle.loads(pickle.dumps(model))


@pytest.mark.parametrize("copied", [deep_copied, saved_by_torch, pickled])
@pytest.mark.parametrize("after", ["nothing", "a forward", "a step"])
def test_a_copy_lives_a_life_of_its_own(copied: Callable[[Any], Any], after: str) -> None:
    plain, ours = twins()
    if after != "nothing":
        loss = loss_of(ours)
        if after == "a step":
            loss.backward()
    before = logits_of(ours)
    twin = copied(ours)
    assert rotations_of(twin) is not None and rotations_of(twin) is not rotations_of(ours)
    assert torch.equal(logits_of(twin), before)
    for model in (plain, twin):
        fill(model, 0.2, seed=4)
        model.zero_grad()
        loss_of(model).backward()
    assert gap(gradients(plain), gradients(twin)) < 1e-6
    assert torch.equal(logits_of(ours), before)
    attach.batched(twin)
    assert len(twin._forward_pre_hooks) == 1 and len(ours._forward_pre_hooks) == 1
    assert (logits_of(twin) - logits_of(plain)).abs().max() < 1e-6


def test_generation_under_sampling_and_beams_equals_peft() -> None:
    pair = twins()
    for fields in ({"do_sample": True, "top_k": 20}, {"num_beams": 3}):
        answers = []
        for model in pair:
            torch.manual_seed(11)
            answers.append(model.eval().generate(input_ids=IDS[:, :4], max_new_tokens=6, **fields))
        assert torch.equal(*answers)


def test_layers_that_are_not_linear_stay_peft() -> None:
    torch.manual_seed(0)
    model: Any = base_model()
    from peft import get_peft_model

    config = OFTConfig(target_modules=["q_proj", "embed_tokens"], r=0, oft_block_size=16)
    try:
        plain = get_peft_model(model, config)
    except ValueError as fault:
        pytest.skip(f"this PEFT: {fault}")
    adapted = attach.batched(plain)
    fill(adapted, 0.1)
    kinds = {type(module) for module in adapted.modules() if hasattr(module, "oft_R")}
    assert {kind.__name__ for kind in kinds} == {"BatchedLinear", "Embedding"}
    loss_of(adapted).backward()
    assert len(gradients(adapted)) == len(trained(adapted)) == 3
