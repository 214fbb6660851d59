"""The probe of an attention passes on a sound device, and fails where one shape of training goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from device_faults import attending, ignoring_masks, not_a_number, without_flash_wheel

from train.probes import attention

CPU = torch.device("cpu")


@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("variant", ["sdpa", attention.NO_FLASH, "eager"])
def test_a_sound_device_passes_all_four_shapes(variant: str, precision: str) -> None:
    found = attention.probe(variant, precision, CPU)
    attention.use("sdpa")
    assert found.passed, found.words()
    assert list(found.figures) == ["unmasked", "masked", "packed", "split"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [(not_a_number, "masked inf"), (ignoring_masks, "masked"), (without_flash_wheel, "flash_attn_2")],
)
def test_a_wrong_attention_fails_and_eager_is_not_touched_by_it(
    fault: Callable[..., Any], words: str
) -> None:
    with attending(fault):
        found = attention.probe("sdpa", "bf16", CPU)
        assert attention.probe("eager", "bf16", CPU).passed
    assert not found.passed
    assert words in found.words()


@pytest.mark.parametrize("shape", ["unmasked", "split"])
def test_one_wrong_shape_is_enough(shape: str) -> None:
    def wrong(original: Any, query: Any, key: Any, value: Any, mask: Any, **named: Any) -> Any:
        found = original(query, key, value, attn_mask=mask, **named)
        is_split = query.shape[2] == attention.LENGTHS[1]
        return found * 1.2 if mask is None and is_split == (shape == "split") else found

    with attending(wrong):
        found = attention.probe("sdpa", "bf16", CPU)
    bad = [name for name, figure in found.figures.items() if float(figure) > (found.allowed or 0)]
    assert shape in bad
    assert not found.passed


def test_a_wrong_gradient_fails() -> None:
    def wrong(original: Any, query: Any, key: Any, value: Any, mask: Any, **named: Any) -> Any:
        return original(query, key, value.detach() + (value - value.detach()) * 1.5, attn_mask=mask, **named)

    with attending(wrong):
        assert not attention.probe("sdpa", "fp32", CPU).passed


def test_without_flash_kernels_the_switch_is_off_and_back_on_with_plain_sdpa() -> None:
    assert attention.use(attention.NO_FLASH) == "sdpa"
    assert not torch.backends.cuda.flash_sdp_enabled()
    assert attention.use("eager") == "eager"
    assert attention.use("sdpa") == "sdpa"
    assert torch.backends.cuda.flash_sdp_enabled()
