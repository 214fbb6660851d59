"""An adapter's folder is read and loaded whole, or refused with everything that is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, OFTConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from train.adapters.attach import trainable
from train.adapters.saved import load_adapter, read_adapter_config
from train.checks.tiny import CONFIG
from train.errors import EXIT_CONFIG, UserError
from train.loop.model import load_model

Adapters = Callable[..., Path]
KINDS = pytest.mark.parametrize("kind", ["lora", "oft"])
WEIGHTS = "adapter_model.safetensors"
IDS = torch.arange(20, 60).unsqueeze(0)


def base(tiny: Path, dtype: torch.dtype = torch.float32) -> Any:
    return load_model(tiny, dtype, "sdpa")


def refused(folder: Path, tiny: Path | None = None) -> UserError:
    with pytest.raises(UserError) as caught:
        if tiny is None:
            read_adapter_config(folder)
        else:
            load_adapter(base(tiny), folder, trainable=False)
    assert caught.value.exit_code == EXIT_CONFIG
    return caught.value


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


@KINDS
def test_the_kind_is_read_from_the_folder(adapter_of: Adapters, kind: str) -> None:
    saved = read_adapter_config(adapter_of(kind))
    assert (saved.kind, saved.weights.name) == (kind, WEIGHTS)


def test_an_empty_folder_lacks_both_files_and_both_are_named(tmp_path: Path) -> None:
    lines = refused(tmp_path).message.splitlines()
    assert len(lines) == 2
    assert "has no adapter weights (adapter_model.safetensors or" in lines[0]
    assert "adapter_config.json: cannot be read" in lines[1]


def test_a_kind_in_the_place_of_a_folder_gets_a_clear_word() -> None:
    assert "is a kind of adapter; here the folder" in refused(Path("oft")).message


def test_a_runs_folder_is_answered_with_its_adapters(adapter_of: Adapters) -> None:
    folder = adapter_of("lora").parent
    (folder / "adapter").symlink_to(adapter_of("lora"))
    assert f"its adapter is {folder / 'adapter'}" in refused(folder).hint


@pytest.mark.parametrize(("content", "text"), [("{", "is not valid JSON"), ("[]", "is not a JSON object")])
def test_a_broken_config_is_refused(copy_of: Adapters, content: str, text: str) -> None:
    folder = copy_of("lora")
    (folder / "adapter_config.json").write_text(content, encoding="utf-8")
    assert text in refused(folder).message


@pytest.mark.parametrize("peft_type", ["IA3", None])
def test_another_kind_is_refused_with_those_that_are_supported(copy_of: Adapters, peft_type: Any) -> None:
    message = refused(copy_of("lora", {"peft_type": peft_type})).message
    assert f"{peft_type!r}: supported are LORA, OFT" in message


def test_all_faults_of_a_folder_are_said_at_once(copy_of: Adapters) -> None:
    edits = {"oft_block_size": None, "use_cayley_neumann": True, "peft_version": None}
    folder = copy_of("oft", edits, manifest=False)
    (folder / WEIGHTS).unlink()
    lines = refused(folder).message.splitlines()
    parts = ("has no adapter weights", "peft 0.13", "peft_version missing")
    assert all(part in line for part, line in zip(parts, lines, strict=True)), lines


@pytest.mark.parametrize("version", [None, "0.17.1", "0.9.0", "nonsense"])
@pytest.mark.parametrize("series", [True, None])
def test_a_series_of_an_unknown_or_old_peft_is_refused_with_the_version_to_use(
    copy_of: Adapters, version: Any, series: Any
) -> None:
    edits = {"use_cayley_neumann": series, "peft_version": version}
    message = refused(copy_of("oft", edits, manifest=False)).message
    assert f"peft_version {version or 'missing'}" in message
    assert "use peft 0.17 for it, or retrain" in message


@pytest.mark.parametrize(("series", "version"), [(True, "0.18.0"), (True, "1.0.0"), (False, None)])
def test_what_every_peft_reads_alike_is_taken(copy_of: Adapters, series: bool, version: Any) -> None:
    edits = {"use_cayley_neumann": series, "peft_version": version}
    assert read_adapter_config(copy_of("oft", edits, manifest=False)).doubt == ""


def test_a_fingerprint_proves_an_old_series(copy_of: Adapters, tiny: Path) -> None:
    folder = copy_of("oft", {"peft_version": None}, oft={"cayley": "series"})
    load_adapter(base(tiny), folder, trainable=False)


def test_a_fingerprint_that_cannot_tell_proves_nothing(copy_of: Adapters, tiny: Path) -> None:
    folder = copy_of("oft", {"peft_version": None}, oft={"cayley": "series"}, std=1e-7)
    assert "peft_version missing" in refused(folder, tiny).message


@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loaded_adapter_holds_the_files_figures_in_fp32(
    adapter_of: Adapters, tiny: Path, kind: str, dtype: torch.dtype
) -> None:
    folder = adapter_of(kind)
    adapted = load_adapter(base(tiny, dtype), folder, trainable=True)
    tensors = load_file(folder / WEIGHTS)
    parameters = {name.replace(".default", ""): value for name, value in trainable(adapted).items()}
    assert parameters.keys() == tensors.keys()
    assert all(torch.equal(parameters[name].detach(), tensors[name]) for name in tensors)
    assert trainable(load_adapter(base(tiny, dtype), folder, trainable=False)) == {}


@KINDS
def test_ours_loads_in_plain_peft_with_the_same_logits(adapter_of: Adapters, tiny: Path, kind: str) -> None:
    with torch.no_grad():
        plain = PeftModel.from_pretrained(base(tiny), str(adapter_of(kind))).eval()(IDS).logits
        ours = load_adapter(base(tiny), adapter_of(kind), trainable=False)(IDS).logits
    assert torch.allclose(plain, ours, atol=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        LoraConfig(r=4, target_modules=["q_proj", "up_proj"], use_rslora=True, use_dora=True),
        OFTConfig(oft_block_size=16, target_modules="all-linear"),
        OFTConfig(oft_block_size=16, target_modules=["q_proj"], block_share=True),
    ],
)
def test_plain_pefts_adapter_loads_and_what_is_not_compared_is_said(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], config: Any
) -> None:
    config.init_lora_weights = config.init_weights = False
    plain = get_peft_model(base(tiny), config).eval()
    plain.save_pretrained(str(tmp_path / "plain"))
    capsys.readouterr()
    with torch.no_grad():
        ours = load_adapter(base(tiny), tmp_path / "plain", trainable=False)(IDS).logits
        assert torch.allclose(plain(IDS).logits, ours, atol=1e-5)
    assert "has no isotune.json" in capsys.readouterr().out


@KINDS
def test_tensors_that_are_missing_left_over_or_not_finite_are_all_named(
    copy_of: Adapters, tiny: Path, kind: str
) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        names = sorted(tensors)
        tensors["base_model.model.model.layers.9.x"] = tensors.pop(names[0])
        tensors[names[1]] = torch.full_like(tensors[names[1]], torch.nan)

    folder = copy_of(kind)
    rewrite(folder, change)
    fault = refused(folder, tiny)
    parts = ("missing, so it would do nothing", "layers.9.x): for no layer", "not finite")
    assert all(part in line for part, line in zip(parts, fault.message.splitlines(), strict=True))
    assert "other layers or layer names" in fault.hint


def test_keys_that_another_transformers_names_otherwise_are_no_silent_no_op(
    copy_of: Adapters, tiny: Path
) -> None:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.replace("model.model.layers", "model.model.language_model.layers")] = tensors.pop(
                name
            )

    folder = copy_of("lora", manifest=False)
    rewrite(folder, change)
    assert "28 tensors" in refused(folder, tiny).message


@pytest.mark.parametrize(("kind", "edits"), [("lora", {"r": 4}), ("oft", {"oft_block_size": 16})])
def test_another_size_in_the_config_is_refused(
    copy_of: Adapters, tiny: Path, kind: str, edits: dict[str, Any]
) -> None:
    fault = refused(copy_of(kind, edits, manifest=False), tiny)
    assert "of another shape" in fault.message
    assert f"{next(iter(edits))} in adapter_config.json is not what was trained" in fault.hint


@KINDS
def test_a_base_of_another_size_is_refused(adapter_of: Adapters, tmp_path: Path, kind: str) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    other = Qwen2ForCausalLM(Qwen2Config(**CONFIG | {"hidden_size": 128}))
    with pytest.raises(UserError, match="of another shape") as caught:
        load_adapter(other, adapter_of(kind), trainable=False)
    assert "the base model has other sizes" in caught.value.hint


def test_targets_that_the_base_does_not_have_are_refused(copy_of: Adapters, tiny: Path) -> None:
    assert "c_attn" in refused(copy_of("lora", {"target_modules": ["c_attn"]}), tiny).message


def test_a_damaged_weights_file_is_refused(copy_of: Adapters, tiny: Path) -> None:
    folder = copy_of("lora")
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:200])
    assert f"{WEIGHTS}: does not load" in refused(folder, tiny).message


def test_unknown_fields_are_noted_when_off_and_refused_when_they_say_something(
    copy_of: Adapters, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy_of("lora", {"new_trick": False, "peft_version": "9.9.9"})
    load_adapter(base(tiny), folder, trainable=False)
    assert "unknown to this PEFT and off: new_trick" in capsys.readouterr().out
    path = folder / "adapter_config.json"
    path.write_text(path.read_text("utf-8").replace('"new_trick": false', '"new_trick": 3'), "utf-8")
    fault = refused(folder, tiny)
    assert "does not know: new_trick=3" in fault.message
    assert "peft 9.9.9" in fault.hint
    assert json.loads(path.read_text("utf-8"))["new_trick"] == 3


def test_an_adapter_is_not_read_through_a_card_that_nobody_named(
    adapter_of: Adapters, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy() -> str:
        raise AssertionError("a card was looked for")

    monkeypatch.setattr("peft.peft_model.infer_device", busy)
    load_adapter(base(tiny), adapter_of("lora"), trainable=False)
