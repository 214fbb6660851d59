"""rsLoRA and DoRA: equal to plain PEFT from the first product to the merged checkpoint."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lora_twins import step
from oft_twins import do_both, fill, gap, logits_of
from peft import LoraConfig, get_peft_model

from train.adapters import attach, lora
from train.adapters.saved import load_adapter
from train.config import RunConfig
from train.loop.model import load_model
from train.results.merge import MergeOptions, merge

KINDS: list[dict[str, Any]] = [
    {"use_rslora": True},
    {"use_dora": True},
    {"use_rslora": True, "use_dora": True},
]


def config(tiny: Path, **settings: Any) -> RunConfig:
    given = {"adapter": "lora", "model": tiny, "data": "d", "output": "o", "lora": {"r": 4, **settings}}
    return RunConfig.model_validate(given)


@pytest.mark.parametrize("settings", KINDS)
def test_a_recipe_gives_what_plain_peft_gives(tiny: Path, settings: dict[str, Any]) -> None:
    """Outputs, gradients and outputs after a step, with weights that do something."""
    recipe = config(tiny, **settings)
    base = load_model(tiny, torch.float32, "sdpa")
    ours = attach.attach(base, recipe, attach.find_targets(base, recipe))
    names = sorted({name.rsplit(".", 1)[-1] for name in ours.targeted_module_names})
    fields: dict[str, Any] = {"r": 4, "lora_alpha": 16, "target_modules": names, **settings}
    plain = get_peft_model(
        load_model(tiny, torch.float32, "sdpa"), LoraConfig(task_type="CAUSAL_LM", **fields)
    )
    for model in (ours, plain):
        fill(model, 0.05)
        model.train()

    def work(model: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor], torch.Tensor]:
        before, found = logits_of(model), step(model)
        torch.optim.SGD(attach.trainable(model).values(), lr=1.0).step()
        return before, found, logits_of(model)

    left, right = do_both((plain, ours), work)
    assert left[1].keys() == right[1].keys()
    assert gap(left[1], right[1]) < 1e-6
    assert torch.allclose(left[0], right[0], rtol=0, atol=1e-5)
    assert torch.allclose(left[2], right[2], rtol=0, atol=1e-4)
    assert (left[2] - left[0]).abs().max() > 0.01


@pytest.mark.parametrize("settings", KINDS)
def test_it_is_saved_loaded_and_merged_as_what_it_is(
    adapter_of: Callable[..., Path], tiny: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    folder = adapter_of("lora", lora={"r": 4, **settings})
    loaded = load_adapter(load_model(tiny, torch.float32, "sdpa"), folder, trainable=True)
    active: Any = loaded.peft_config["default"]
    assert all(getattr(active, name) for name in settings)
    magnitudes = [name for name in attach.trainable(loaded) if "lora_magnitude_vector" in name]
    assert len(magnitudes) == (14 if "use_dora" in settings else 0)
    report = merge(MergeOptions(tiny, folder, tmp_path / "merged"), io.StringIO())
    assert report["checks"]["reloaded"] <= report["checks"]["allowed"] < report["checks"]["effect_on_logits"]


def test_without_dora_there_is_nothing_to_say(tiny: Path) -> None:
    assert lora.notes(config(tiny, use_rslora=True)) == []


def test_another_scaling_on_going_on_is_refused_by_name(adapter_of: Callable[..., Path], tiny: Path) -> None:
    from train.adapters.initial import check_init_adapter
    from train.errors import UserError

    folder = adapter_of("lora", lora={"r": 4, "use_rslora": True})
    given = {"adapter": "lora", "model": tiny, "data": "d", "output": "o", "init_adapter": folder}
    with pytest.raises(UserError, match="lora.use_rslora: False was asked for"):
        check_init_adapter(RunConfig.model_validate(given | {"lora": {"use_rslora": False}}))
