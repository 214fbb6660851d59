"""Merging block by block: equal logits, weights restored to the last bit, and a bound on memory."""

from __future__ import annotations

import warnings
import weakref
from typing import Any

import pytest
import torch
from oft_twins import do_both, fill, layer, logits_of, loss_of, twins
from peft import OFTConfig, get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from train.adapters import attach, oft, oft_layer
from train.adapters.oft_layer import BatchedLinear, layer_rotations, turn_weight

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
FORMS: dict[str, dict[str, Any]] = {
    "exact": {},
    "series": {"use_cayley_neumann": True},
    "shared": {"block_share": True},
    "coft": {"coft": True, "eps": 0.1},
    "two sizes": {"oft_block_size": 32, "sizes": {"intermediate_size": 90}},
}


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {
        name: module.get_base_layer().weight.detach().clone()
        for name, module in model.named_modules()
        if isinstance(module, BatchedLinear)
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_merged_logits_are_the_unmerged_ones_and_unmerging_restores_every_bit(
    form: str, dtype: torch.dtype
) -> None:
    _, ours = twins(dtype=dtype, **FORMS[form])
    before, original = logits_of(ours), weights(ours)
    ours.merge_adapter()
    merged = logits_of(ours)
    changed = weights(ours)
    assert not any(torch.equal(changed[name], original[name]) for name in original)
    assert (merged - before).abs().max() < 4 * before.abs().max() * torch.finfo(dtype).eps + 1e-6
    ours.unmerge_adapter()
    restored = weights(ours)
    assert all(torch.equal(restored[name], original[name]) for name in original)
    assert torch.equal(logits_of(ours), before)


@pytest.mark.parametrize("form", FORMS)
def test_merged_weights_are_those_of_peft(form: str) -> None:
    pair = twins(**FORMS[form])
    do_both(pair, lambda model: model.merge_adapter())
    for name in ("q_proj", "down_proj"):
        left, right = (layer(model, name).get_base_layer().weight for model in pair)
        assert (left - right).abs().max() < 1e-6


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_unloaded_model_is_plain_and_calls_nothing_of_ours(dtype: torch.dtype) -> None:
    _, ours = twins(dtype=dtype)
    before = logits_of(ours)
    rotations = weakref.ref(layer(ours, "q_proj").rotations)
    unloaded = ours.merge_and_unload()
    assert (logits_of(unloaded) - before).abs().max() < 4 * before.abs().max() * torch.finfo(dtype).eps + 1e-6
    assert not any(isinstance(module, BatchedLinear) for module in unloaded.modules())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in unloaded.modules())
    del ours
    assert rotations() is None


def test_unloading_without_merging_gives_the_base_back() -> None:
    pair = twins()
    base = do_both(pair, lambda model: logits_of(model.unload()))
    assert torch.equal(*base)


def test_a_merge_that_is_not_finite_leaves_the_weight_as_it_was() -> None:
    _, ours = twins(num_layers=1)
    original = weights(ours)
    layer(ours, "q_proj").oft_R["default"].weight.data[0, 0] = torch.nan
    with pytest.raises(ValueError, match="default: the merged weights are not finite"):
        ours.merge_adapter(safe_merge=True)
    assert not layer(ours, "q_proj").merged
    assert torch.equal(layer(ours, "q_proj").get_base_layer().weight, next(iter(original.values())))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT's word on each layer that was not merged
        ours.unmerge_adapter()
    assert all(torch.equal(tensor, original[name]) for name, tensor in weights(ours).items())


def test_training_goes_on_after_unmerging() -> None:
    pair = twins()
    for model in pair:
        model.merge_adapter()
        logits_of(model)
        model.unmerge_adapter()
        fill(model, 0.1, seed=4)
    losses = do_both(pair, lambda model: loss_of(model).item())
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


@pytest.mark.parametrize("merged_by_peft", [False, True])
def test_a_merged_model_that_is_batched_again_can_be_unmerged(merged_by_peft: bool) -> None:
    pair = twins()
    model = pair[0] if merged_by_peft else pair[1]
    before = layer(model, "up_proj").get_base_layer().weight.detach().clone()
    model.merge_adapter()
    attach.batched(model)
    assert not torch.equal(layer(model, "up_proj").get_base_layer().weight, before)
    model.unmerge_adapter()
    after = layer(model, "up_proj").get_base_layer().weight
    assert not layer(model, "up_proj").merged
    assert torch.allclose(after, before, atol=1e-6) if merged_by_peft else torch.equal(after, before)


def test_unmerging_what_is_not_merged_is_said() -> None:
    _, ours = twins(num_layers=1)
    with pytest.warns(UserWarning, match="Already unmerged"):
        layer(ours, "q_proj").unmerge()


@pytest.mark.parametrize("rows", [1, 3, 7, 64])
def test_portions_of_any_size_give_the_same(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    _, ours = twins(num_layers=1)
    one = layer(ours, "down_proj")
    expected = one.get_base_layer().weight.detach().clone()
    dense = torch.block_diag(*layer_rotations(one, "default"))
    monkeypatch.setattr(oft_layer, "MERGE_BYTES", rows * 96 * 4)
    turned = expected.clone()
    turn_weight(turned, layer_rotations(one, "default"))
    assert torch.allclose(turned, expected @ dense.T, atol=1e-6)
    assert (turned - expected).abs().max() > 1e-2


class Memory(TorchDispatchMode):
    """The bytes of tensors that operators made and that still live, and the most there were of them."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, int] = {}
        self.most = self.largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if torch.is_tensor(t)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if torch.is_tensor(tensor):
                self.note(tensor, known)
        return result

    def note(self, tensor: torch.Tensor, known: set[int]) -> None:
        storage = tensor.untyped_storage()
        if storage.data_ptr() in known or storage.data_ptr() in self.live:
            return
        place = storage.data_ptr()
        self.live[place] = storage.nbytes()
        self.largest = max(self.largest, storage.nbytes())
        self.most = max(self.most, sum(self.live.values()))
        weakref.finalize(storage, self.live.pop, place, None)


def wide_layer(outputs: int, block: int, inputs: int, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(inputs, outputs, bias=False, dtype=dtype))
    config = OFTConfig(target_modules=["0"], r=0, oft_block_size=block, use_cayley_neumann=False)
    model = oft.batched(get_peft_model(model, config))
    fill(model, 0.05)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("outputs", [64, 1024])
def test_a_merge_keeps_its_bound_on_memory(outputs: int, dtype: torch.dtype) -> None:
    inputs, block = 18_944, 32
    model = wide_layer(outputs, block, inputs, dtype)
    x = torch.randn(3, inputs).to(dtype)
    with torch.no_grad():
        before = model(x)
    with Memory() as memory:
        model.merge_adapter()
    kept, rotations = inputs * outputs * dtype.itemsize, inputs * block * 4
    portion = min(32 << 20, inputs * outputs * 4)
    assert memory.largest <= max(kept, portion)
    assert kept + portion < memory.most <= kept + 6 * rotations + 2 * portion
    with torch.no_grad():
        assert torch.allclose(model(x), before, atol=1e-4 if dtype == torch.float32 else 0.05)
