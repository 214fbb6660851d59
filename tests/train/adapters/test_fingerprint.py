"""An adapter is used only on its base and in the reading it was trained with; the reasons are told apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from train.adapters import fingerprint
from train.adapters.manifest import read_manifest
from train.adapters.saved import load_adapter, read_adapter_config
from train.checks.tiny import make_tiny
from train.errors import EXIT_CONFIG, EXIT_TRAINING, UserError
from train.loop.model import load_model

Adapters = Callable[..., Path]
KINDS = pytest.mark.parametrize("kind", ["lora", "oft"])
WEIGHTS = "adapter_model.safetensors"


def load(model: Path, folder: Path, dtype: torch.dtype = torch.float32, trainable: bool = False) -> Any:
    return load_adapter(load_model(model, dtype, "sdpa"), folder, trainable)


def refused(model: Path, folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        load(model, folder)
    assert caught.value.exit_code == EXIT_CONFIG
    return str(caught.value)


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads((folder / "isotune.json").read_text(encoding="utf-8"))
    change(content)
    (folder / "isotune.json").write_text(json.dumps(content), encoding="utf-8")


def edit_weights(folder: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    tensors = {name: change(tensor).contiguous() for name, tensor in load_file(folder / WEIGHTS).items()}
    save_file(tensors, folder / WEIGHTS, {"format": "edited"})


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("other") / "model"
    make_tiny(folder, seed=1)
    return folder


def test_a_probe_depends_on_the_vocabulary_alone() -> None:
    probe = fingerprint.make_probe(512)
    assert probe == fingerprint.make_probe(512) != fingerprint.make_probe(511)
    assert probe.input_ids[0][:4] == [154, 266, 103, 335]
    assert 256 < probe.largest_id < 512
    assert fingerprint.make_probe(1).largest_id == 0


@KINDS
def test_the_manifest_says_of_which_base_and_in_which_way(
    adapter_of: Adapters, tiny: Path, kind: str
) -> None:
    manifest = read_manifest(adapter_of(kind))
    assert manifest is not None
    assert manifest.kind == kind
    assert manifest.base["folder"] == tiny.name
    assert set(manifest.base["files"]) == {"config.json", "model.safetensors"}
    assert manifest.versions["torch"] == version("torch")
    assert manifest.parametrisation["r" if kind == "lora" else "oft_block_size"] in (8, 32)
    figures = manifest.fingerprint
    assert (figures.dtype, figures.device) == ("float32", "cpu")
    assert fingerprint.difference(figures.adapted, figures.base, figures.base) > 0.1


@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_adapter_made_in_fp32_passes_in_every_dtype_without_a_note(
    adapter_of: Adapters, tiny: Path, kind: str, dtype: torch.dtype, capsys: pytest.CaptureFixture[str]
) -> None:
    load(tiny, adapter_of(kind), dtype)
    assert capsys.readouterr().out == ""


@KINDS
def test_another_base_is_refused_by_name_and_file(
    adapter_of: Adapters, other: Path, tiny: Path, kind: str
) -> None:
    text = refused(other, adapter_of(kind))
    assert f"--model {other}: is not the base model" in text
    assert "model.safetensors was sha256:" in text
    assert "config.json" not in text
    assert f"was named {tiny.name}" in text


def test_a_smaller_vocabulary_is_another_base(copy_of: Adapters, tiny: Path) -> None:
    folder = copy_of("lora")
    edit_manifest(folder, lambda content: content["fingerprint"]["probe"]["token_ids"].append(512))
    assert "its vocabulary has 512 rows only" in refused(tiny, folder)


def test_the_same_files_with_other_logits_are_read_in_another_way(copy_of: Adapters, tiny: Path) -> None:
    folder = copy_of("lora")

    def change(content: dict[str, Any]) -> None:
        content["versions"]["transformers"] = "4.0"
        content["fingerprint"]["base"][0][0] += 1.0

    edit_manifest(folder, change)
    text = refused(tiny, folder)
    assert "its files are the same" in text
    assert "transformers 4.0" in text


@pytest.mark.parametrize("cayley", ["exact", "series"])
def test_the_other_cayley_form_turns_the_other_way_and_is_refused(
    copy_of: Adapters, tiny: Path, cayley: str
) -> None:
    edits = {"use_cayley_neumann": cayley == "exact"}
    text = refused(tiny, copy_of("oft", edits, oft={"cayley": cayley}))
    assert "its files were changed" in text
    assert f"use_cayley_neumann was {cayley == 'series'}, is {cayley == 'exact'}" in text


@pytest.mark.parametrize(("kind", "edits"), [("lora", {"lora_alpha": 32}), ("oft", {"coft": True})])
def test_an_edited_config_is_refused_by_field(
    copy_of: Adapters, tiny: Path, kind: str, edits: dict[str, Any]
) -> None:
    assert f"{next(iter(edits))} was" in refused(tiny, copy_of(kind, edits))


@KINDS
def test_edited_weights_are_refused_by_their_hash(copy_of: Adapters, tiny: Path, kind: str) -> None:
    folder = copy_of(kind)
    edit_weights(folder, lambda tensor: tensor * 1.01)
    text = refused(tiny, folder)
    assert f"{WEIGHTS} was sha256:" in text
    assert "copy the adapter again" in text


def test_the_same_weights_in_another_file_pass_with_a_note(
    copy_of: Adapters, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy_of("lora")
    edit_weights(folder, lambda tensor: tensor)
    load(tiny, folder)
    assert "the logits are as trained" in capsys.readouterr().out


def test_half_precision_does_not_vouch_for_an_edited_setting(copy_of: Adapters, tiny: Path) -> None:
    """Its rounding hides a term of the series."""
    folder = copy_of("oft", {"num_cayley_neumann_terms": 6}, std=0.01, oft={"cayley": "series"})
    with pytest.raises(UserError) as caught:
        load(tiny, folder, torch.bfloat16)
    assert "num_cayley_neumann_terms was 5, is 6" in str(caught.value)
    assert "load it with --precision fp32" in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content["fingerprint"]["adapted"][0].__setitem__(0, "many"),
        lambda content: content["fingerprint"]["probe"]["positions"].__setitem__(0, 999),
    ],
)
def test_a_manifest_with_figures_out_of_place_is_named(
    copy_of: Adapters, tiny: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    folder = copy_of("lora")
    edit_manifest(folder, change)
    assert "isotune.json: is not an adapter's manifest" in refused(tiny, folder)


def test_unchanged_files_that_act_otherwise_are_put_down_to_the_versions(
    copy_of: Adapters, tiny: Path
) -> None:
    folder = copy_of("oft")

    def change(content: dict[str, Any]) -> None:
        content["versions"]["peft"] = "0.17.0"
        content["fingerprint"]["adapted"][0][0] += 1.0

    edit_manifest(folder, change)
    text = refused(tiny, folder)
    assert "it is read in another way" in text
    assert "peft 0.17.0 in float32 on cpu, here torch" in text


def test_an_effect_below_rounding_is_a_note_and_with_edited_weights_an_error(
    copy_of: Adapters, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy_of("oft", std=1e-7)
    load(tiny, folder)
    assert "the fingerprint cannot tell whether it is read as trained" in capsys.readouterr().out
    edit_weights(folder, lambda tensor: tensor * 2)
    assert f"{WEIGHTS} was sha256:" in refused(tiny, folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.update(schema=2),
        lambda content: content.pop("fingerprint"),
        lambda content: content["fingerprint"]["base"].pop(),
        lambda content: content.update(fingerprint=3),
    ],
)
def test_a_broken_manifest_is_an_error(copy_of: Adapters, change: Callable[[dict[str, Any]], object]) -> None:
    folder = copy_of("lora")
    edit_manifest(folder, change)
    with pytest.raises(UserError, match=r"isotune.json: is not an adapter's manifest"):
        read_adapter_config(folder)


@KINDS
def test_taking_a_fingerprint_changes_nothing(adapter_of: Adapters, tiny: Path, kind: str) -> None:
    folder = adapter_of(kind, lora={"r": 8, "lora_dropout": 0.5})
    adapted = load(tiny, folder, trainable=True).train()
    frozen = {name: parameter.requires_grad for name, parameter in adapted.named_parameters()}
    state = torch.get_rng_state()
    probe = fingerprint.make_probe(512)
    assert fingerprint.take(adapted, probe) == fingerprint.take(adapted, probe)
    assert all(module.training for module in adapted.modules())
    assert {name: parameter.requires_grad for name, parameter in adapted.named_parameters()} == frozen
    assert torch.equal(torch.get_rng_state(), state)


def test_logits_that_are_not_finite_are_an_error(tiny: Path) -> None:
    model = load_model(tiny, torch.float32, "sdpa")
    with torch.no_grad():
        model.model.norm.weight.fill_(torch.inf)
    with pytest.raises(UserError, match="not finite") as caught:
        fingerprint.probe_logits(model, fingerprint.make_probe(512))
    assert caught.value.exit_code == EXIT_TRAINING


def test_a_difference_is_in_spreads_and_the_coarsest_dtype_decides() -> None:
    scale = [[0.0, 2.0, 0.0, 2.0]]
    spread = torch.tensor(scale).std().item()
    assert fingerprint.difference([[1.0, 0.0]], [[0.0, 1.0]], scale) == pytest.approx(1 / spread)
    assert fingerprint.difference([[torch.nan]], [[0.0]], scale) != 0
    assert fingerprint.tolerance("float32", "bfloat16") == fingerprint.TOLERANCES["bfloat16"]
    assert fingerprint.tolerance("float32") == 1e-4
    assert fingerprint.percent(1.3413) == "134%"
