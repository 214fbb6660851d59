"""Adapters attach to what was meant, or say why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from train.adapters import attach, oft
from train.config import RunConfig
from train.errors import EXIT_CONFIG, EXIT_TRAINING, UserError
from train.loop.model import load_model

PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


def config(recipe: dict[str, Any], **fields: Any) -> RunConfig:
    return RunConfig.model_validate({**recipe, **fields})


@pytest.fixture
def model(tiny: Path) -> Any:
    return load_model(tiny, torch.float32, "sdpa")


def test_auto_takes_every_projection_and_not_the_head(model: Any, recipe: dict[str, Any]) -> None:
    targets = attach.find_targets(model, config(recipe))
    assert {target.kind for target in targets} == PROJECTIONS
    assert sum(len(target.modules) for target in targets) == 14


@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_the_table_accounts_for_every_trainable_parameter(
    model: Any, recipe: dict[str, Any], adapter: str
) -> None:
    settings = config(recipe, adapter=adapter)
    targets = attach.find_targets(model, settings)
    adapted = attach.attach(model, settings, targets)
    table = attach.target_table(adapted, targets)
    assert sum(row.num_parameters for row in table) == sum(
        p.numel() for p in attach.trainable(adapted).values()
    )
    assert all(row.num_parameters > 0 for row in table)
    shown = {row.kind: row.settings for row in table}
    if adapter == "lora":
        assert set(map(str, shown.values())) == {"{'r': 8}"}
    else:
        assert shown["q_proj"] == {"oft_block_size": 32, "oft_num_blocks": 8}
        assert shown["down_proj"] == {"oft_block_size": 32, "oft_num_blocks": 16}


@pytest.mark.parametrize(
    ("targets", "names"),
    [
        ("auto", PROJECTIONS),
        (["q_proj"], {"q_proj"}),
        (["layers.1.mlp.up_proj"], {"model.layers.1.mlp.up_proj"}),
        (["layers.*.mlp.up_proj"], {"up_proj"}),
    ],
)
def test_the_adapters_config_names_kinds_where_these_mean_the_same(
    model: Any, recipe: dict[str, Any], targets: Any, names: set[str]
) -> None:
    settings = config(recipe, target_modules=targets)
    found = attach.find_targets(model, settings)
    adapted = attach.attach(model, settings, found)
    assert adapted.peft_config["default"].target_modules == names
    assert set(adapted.targeted_module_names) == {name for target in found for name in target.modules}


@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_named_targets_are_the_only_ones(model: Any, recipe: dict[str, Any], adapter: str) -> None:
    settings = config(recipe, adapter=adapter, target_modules=["q_proj", "down_proj"])
    adapted = attach.attach(model, settings, attach.find_targets(model, settings))
    assert {name.rsplit(".", 1)[-1] for name in adapted.targeted_module_names} == {"q_proj", "down_proj"}


def test_targets_that_match_nothing_are_all_named_with_what_is_near(
    model: Any, recipe: dict[str, Any]
) -> None:
    with pytest.raises(UserError) as caught:
        attach.find_targets(model, config(recipe, target_modules=["q_projj", "lm_head", "q_proj"]))
    assert caught.value.message.splitlines() == [
        "target_modules: no linear layer is named q_projj; did you mean q_proj?",
        "target_modules: no linear layer is named lm_head",
    ]
    assert caught.value.exit_code == EXIT_CONFIG
    assert "gate_proj" in caught.value.hint


def test_no_targets_at_all_is_refused(model: Any, recipe: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="nothing would be trained"):
        attach.find_targets(model, config(recipe, target_modules=[]))


def test_a_block_that_does_not_divide_is_refused_for_every_layer_with_the_sizes_that_do(
    model: Any, recipe: dict[str, Any]
) -> None:
    settings = config(recipe, adapter="oft", oft={"oft_block_size": 48})
    targets = attach.find_targets(model, settings)
    with pytest.raises(UserError) as caught:
        attach.attach(model, settings, targets)
    assert len(caught.value.message.splitlines()) == 7
    assert "48 does not divide the 256 inputs of q_proj" in caught.value.message
    assert "2, 4, 8, 16, 32, 64, 128, 256" in caught.value.hint
    assert "oft.oft_block_size=auto" in caught.value.hint


def test_a_layer_that_peft_leaves_out_is_an_error(
    model: Any, recipe: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(recipe, target_modules=["q_proj", "up_proj"])
    targets = attach.find_targets(model, settings)
    monkeypatch.setattr(attach, "_names", lambda model, targets: ["q_proj"])
    with pytest.raises(
        UserError, match="PEFT attached to 2 layers, 4 are due; for example .*up_proj"
    ) as caught:
        attach.attach(model, settings, targets)
    assert caught.value.exit_code == EXIT_TRAINING


def test_a_rank_above_a_layers_sides_is_refused(model: Any, recipe: dict[str, Any]) -> None:
    settings = config(recipe, lora={"r": 129})
    with pytest.raises(UserError, match="129 is more than k_proj has") as caught:
        attach.attach(model, settings, attach.find_targets(model, settings))
    assert "lora.r=128" in caught.value.hint


@pytest.mark.parametrize("adapter", ["lora", "oft"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_trainable_parameters_are_fp32_over_any_base(
    tiny: Path, recipe: dict[str, Any], adapter: str, dtype: torch.dtype
) -> None:
    settings = config(recipe, adapter=adapter)
    base = load_model(tiny, dtype, "sdpa")
    adapted = attach.attach(base, settings, attach.find_targets(base, settings))
    assert {parameter.dtype for parameter in attach.trainable(adapted).values()} == {torch.float32}
    assert next(adapted.get_base_model().model.embed_tokens.parameters()).dtype == dtype


@pytest.mark.parametrize("cayley", ["exact", "series"])
def test_an_oft_adapter_is_the_identity_at_first_and_orthogonal(
    model: Any, recipe: dict[str, Any], cayley: str
) -> None:
    ids = torch.arange(10, 30).unsqueeze(0)
    plain = model(ids).logits
    settings = config(recipe, adapter="oft", oft={"cayley": cayley})
    adapted = attach.attach(model, settings, attach.find_targets(model, settings))
    assert torch.allclose(adapted(ids).logits, plain, atol=1e-5)
    assert oft.orthogonality_error(adapted) == 0.0
    assert adapted.peft_config["default"].use_cayley_neumann is (cayley == "series")


def test_the_orthogonality_error_sees_a_series_that_has_drifted(model: Any, recipe: dict[str, Any]) -> None:
    settings = config(recipe, adapter="oft", oft={"cayley": "series"})
    adapted = attach.attach(model, settings, attach.find_targets(model, settings))
    with torch.no_grad():
        for parameter in attach.trainable(adapted).values():
            parameter.normal_(std=0.2, generator=torch.Generator().manual_seed(0))
    assert oft.orthogonality_error(adapted) > 0.1
