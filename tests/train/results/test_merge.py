"""A merged checkpoint is plain, whole, and computes what base and adapter compute, or does not come to be."""

from __future__ import annotations

import json
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from train.adapters.saved import load_adapter
from train.checks.tiny import CONFIG, write_tokenizer
from train.errors import EXIT_CONFIG, EXIT_TRAINING, UserError
from train.loop.model import load_model
from train.results.merge import MergeOptions, merge

Adapters = Callable[..., Path]
KINDS = pytest.mark.parametrize("kind", ["lora", "oft"])
IDS = torch.arange(20, 60).unsqueeze(0)


def go(model: Path, adapter: Path, output: Path, **more: Any) -> dict[str, Any]:
    return merge(MergeOptions(model, adapter, output, device="cpu", **more), sys.stdout)


def refused(model: Path, adapter: Path, output: Path, **more: Any) -> UserError:
    with pytest.raises(UserError) as caught:
        go(model, adapter, output, **more)
    return caught.value


def write_model(folder: Path, dtype: torch.dtype = torch.float32, **fields: Any) -> Path:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    Qwen2ForCausalLM(Qwen2Config(**CONFIG | fields)).to(dtype).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


@KINDS
def test_the_merged_folder_is_a_plain_checkpoint_with_the_adapters_logits(
    adapter_of: Adapters, tiny: Path, tmp_path: Path, kind: str
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    report = go(tiny, adapter_of(kind), tmp_path / "merged")
    plain = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    adapted = load_adapter(load_model(tiny, torch.float32, "sdpa"), adapter_of(kind), trainable=False)
    with torch.no_grad():
        assert torch.allclose(plain(IDS).logits, adapted(IDS).logits, atol=1e-4)
    assert plain.dtype == torch.float32
    assert plain.generation_config.eos_token_id == [2]
    assert plain.config.use_cache
    assert load_file(tmp_path / "merged" / "model.safetensors").keys() == (
        load_file(tiny / "model.safetensors").keys()
    )
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "merged")
    assert tokenizer.chat_template == AutoTokenizer.from_pretrained(tiny).chat_template
    assert report["checks"]["reloaded"] < 1e-5 < report["checks"]["effect_on_logits"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["merged"]
    assert (tmp_path / "merged").stat().st_mode & 0o055 == 0o055
    assert (tmp_path / "merged" / "model.safetensors").stat().st_mode & 0o044 == 0o044


@KINDS
def test_merged_json_says_from_what(adapter_of: Adapters, tiny: Path, tmp_path: Path, kind: str) -> None:
    report = go(tiny, adapter_of(kind), tmp_path / "merged")
    assert json.loads((tmp_path / "merged" / "merged.json").read_text("utf-8")) == report
    assert report["base"]["files"]["model.safetensors"].startswith("sha256:")
    assert report["adapter"]["kind"] == kind
    recorded = json.loads((adapter_of(kind) / "isotune.json").read_text("utf-8"))
    assert report["adapter"]["weights"] == recorded["weights"]
    assert (report["checks"]["orthogonality_error"] is None) == (kind == "lora")


@KINDS
@pytest.mark.parametrize(
    ("stored", "asked", "found"),
    [("bf16", "auto", "bfloat16"), ("fp32", "fp16", "float16"), ("bf16", "fp32", "float32")],
)
def test_the_dtype_is_that_of_the_base_or_the_one_asked_for(
    adapter_of: Adapters, tiny: Path, tmp_path: Path, kind: str, stored: str, asked: str, found: str
) -> None:
    adapter = adapter_of(kind)
    model = tiny
    if stored == "bf16":
        model = tmp_path / "bf16"
        load_model(tiny, torch.bfloat16, "sdpa").save_pretrained(model)
        write_tokenizer(model)
        (tmp_path / "adapter").mkdir()
        for path in adapter.iterdir():  # without the manifest: rounded in bf16, the base is another in fp32
            if path.name != "isotune.json":
                (tmp_path / "adapter" / path.name).write_bytes(path.read_bytes())
        adapter = tmp_path / "adapter"
    report = go(model, adapter, tmp_path / "merged", dtype=asked)
    assert report["dtype"] == found
    tensors = load_file(tmp_path / "merged" / "model.safetensors")
    assert {str(tensor.dtype) for tensor in tensors.values()} == {f"torch.{found}"}
    assert json.loads((tmp_path / "merged" / "config.json").read_text("utf-8"))["dtype"] == found


@KINDS
def test_tied_embeddings_stay_tied(adapter_of: Adapters, tmp_path: Path, kind: str) -> None:
    model = write_model(tmp_path / "model", tie_word_embeddings=True)
    go(model, adapter_of(kind, model=model), tmp_path / "merged")
    assert json.loads((tmp_path / "merged" / "config.json").read_text("utf-8"))["tie_word_embeddings"]
    assert "lm_head.weight" not in load_file(tmp_path / "merged" / "model.safetensors")


@pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
def test_embeddings_that_were_trained_apart_are_not_tied_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from peft import LoraConfig, get_peft_model

    model = write_model(tmp_path / "model", tie_word_embeddings=True)
    config = LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["embed_tokens", "lm_head"])
    adapted = get_peft_model(load_model(model, torch.float32, "sdpa"), config)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if parameter.requires_grad and "lm_head" in name:
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    adapted.save_pretrained(str(tmp_path / "adapter"))
    report = go(model, tmp_path / "adapter", tmp_path / "merged")
    assert report["checks"]["effect_on_logits"] > 0.1
    assert "they are tied no more" in capsys.readouterr().out
    config_of = json.loads((tmp_path / "merged" / "config.json").read_text("utf-8"))
    assert config_of["tie_word_embeddings"] is False
    assert "lm_head.weight" in load_file(tmp_path / "merged" / "model.safetensors")


def test_the_bases_generation_config_is_kept_and_gets_every_stop_token(
    adapter_of: Adapters, tiny: Path, tmp_path: Path
) -> None:
    import shutil

    model = Path(shutil.copytree(tiny, tmp_path / "model"))
    settings = {"do_sample": True, "top_p": 0.8, "repetition_penalty": 1.05, "eos_token_id": 1}
    (model / "generation_config.json").write_text(json.dumps(settings), encoding="utf-8")
    go(model, adapter_of("lora"), tmp_path / "merged")
    written = json.loads((tmp_path / "merged" / "generation_config.json").read_text("utf-8"))
    assert {name: written[name] for name in settings} == settings | {"eos_token_id": [2, 1]}


def test_rotations_that_are_none_any_more_are_refused_unless_forced(
    adapter_of: Adapters, tiny: Path, tmp_path: Path
) -> None:
    adapter = adapter_of("oft", std=0.2, oft={"cayley": "series"})
    fault = refused(tiny, adapter, tmp_path / "merged")
    assert fault.exit_code == EXIT_TRAINING
    assert "largest |R R^T - I| is" in fault.message
    assert list(tmp_path.iterdir()) == []
    report = go(tiny, adapter, tmp_path / "merged", force=True)
    assert report["checks"]["orthogonality_error"] > 0.05


@KINDS
def test_a_merge_that_went_wrong_leaves_nothing(
    adapter_of: Adapters, tiny: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peft import PeftModel

    monkeypatch.setattr(PeftModel, "merge_and_unload", lambda self: self.unload(), raising=False)
    fault = refused(tiny, adapter_of(kind), tmp_path / "merged")
    assert fault.exit_code == EXIT_TRAINING
    assert "merged in memory: logits differ" in fault.message
    assert list(tmp_path.iterdir()) == []


def test_files_that_do_not_hold_what_was_merged_leave_nothing(
    adapter_of: Adapters, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import PreTrainedModel

    original = PreTrainedModel.save_pretrained

    def save_something_else(self: Any, folder: Path, **more: Any) -> None:
        with torch.no_grad():
            self.lm_head.weight[:256] += 1
        original(self, folder, **more)

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", save_something_else)
    fault = refused(tiny, adapter_of("lora"), tmp_path / "merged")
    assert "merged and reloaded: logits differ" in fault.message
    assert list(tmp_path.iterdir()) == []


def test_an_effect_below_rounding_is_said(
    adapter_of: Adapters, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    go(tiny, adapter_of("oft", std=1e-7), tmp_path / "merged")
    assert "the check cannot tell whether it was merged" in capsys.readouterr().out


def test_an_empty_folder_is_filled_and_a_full_one_is_refused(
    adapter_of: Adapters, tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "merged").mkdir()
    go(tiny, adapter_of("lora"), tmp_path / "merged")
    before = (tmp_path / "merged" / "merged.json").read_bytes()
    fault = refused(tiny, adapter_of("lora"), tmp_path / "merged")
    assert (fault.exit_code, "is not empty" in fault.message) == (EXIT_CONFIG, True)
    assert (tmp_path / "merged" / "merged.json").read_bytes() == before


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/merged"])
def test_a_place_that_cannot_serve_is_refused_before_anything_is_loaded(
    tiny: Path, tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    fault = refused(tiny, tmp_path, tmp_path / place)
    assert fault.exit_code == EXIT_CONFIG
    assert f"--output {tmp_path / place}: " in fault.message


def test_a_quantised_base_is_refused(adapter_of: Adapters, tiny: Path, tmp_path: Path) -> None:
    import shutil

    model = Path(shutil.copytree(tiny, tmp_path / "model"))
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"quantization_config": {"bits": 4}}))
    assert "is quantised" in refused(model, adapter_of("lora"), tmp_path / "merged").message


@KINDS
def test_the_merged_model_is_gone_before_its_copy_is_loaded(
    adapter_of: Adapters, tiny: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of them would not fit on the card that the model was trained on."""
    weights: list[Any] = []

    def watched(*arguments: Any) -> Any:
        alive = [one for one in weights if one() is not None]
        assert not alive, f"{len(alive)} of {len(weights)} tensors of the first model are still there"
        model = load_model(*arguments)
        weights.extend(weakref.ref(parameter) for parameter in model.parameters())
        return model

    monkeypatch.setattr("train.results.opened.load_model", watched)
    monkeypatch.setattr("train.results.merge.load_model", watched)
    go(tiny, adapter_of(kind), tmp_path / "merged")
    assert weights
