"""Names of older and other trainers: taken with a note where they mean one field, else refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from train.config import known_fields
from train.errors import EXIT_CONFIG, UserError
from train.old_names import OLD
from train.recipe import build_config

FLAGS = {"adapter": "lora", "model": "m", "data": "d", "output": "o"}

TAKEN: list[tuple[str, str, Any]] = [
    ("model_name_or_path: x", "model", Path("x")),
    ("model_name: x", "model", Path("x")),
    ("model_path: x", "model", Path("x")),
    ("base_model: x", "model", Path("x")),
    ("model_id: x", "model", Path("x")),
    ("output_dir: x", "output", Path("x")),
    ("save_dir: x", "output", Path("x")),
    ("train_file: x", "data", Path("x")),
    ("train_data: x", "data", Path("x")),
    ("dataset_path: x", "data", Path("x")),
    ("data_path: x", "data", Path("x")),
    ("eval_file: x", "eval_data", Path("x")),
    ("validation_file: x", "eval_data", Path("x")),
    ("eval_dataset: x", "eval_data", Path("x")),
    ("val_dataset: x", "eval_data", Path("x")),
    ("val_data: x", "eval_data", Path("x")),
    ("adapter_name_or_path: x", "init_adapter", Path("x")),
    ("finetuning_type: oft", "adapter", "oft"),
    ("peft_type: OFT", "adapter", "oft"),
    ("train_type: oft", "adapter", "oft"),
    ("lora_rank: 3", "lora.r", 3),
    ("lora_r: 3", "lora.r", 3),
    ("r: 3", "lora.r", 3),
    ("lora: {rank: 3}", "lora.r", 3),
    ("lora_alpha: 3", "lora.lora_alpha", 3),
    ("lora: {alpha: 3}", "lora.lora_alpha", 3),
    ("lora_dropout: 0.5", "lora.lora_dropout", 0.5),
    ("lora: {dropout: 0.5}", "lora.lora_dropout", 0.5),
    ("use_rslora: true", "lora.use_rslora", True),
    ("use_dora: true", "lora.use_dora", True),
    ("oft_block_size: 16", "oft.oft_block_size", 16),
    ("lora_target: q_proj,v_proj", "target_modules", ["q_proj", "v_proj"]),
    ("lora_target: all", "target_modules", "auto"),
    ("lora_target_modules: [q_proj]", "target_modules", ["q_proj"]),
    ("lora_target_modules: all-linear", "target_modules", "auto"),
    ("cutoff_len: 99", "max_length", 99),
    ("max_seq_length: 99", "max_length", 99),
    ("max_seq_len: 99", "max_length", 99),
    ("sequence_len: 99", "max_length", 99),
    ("enable_thinking: false", "thinking", "off"),
    ("enable_thinking: true", "thinking", "on"),
    ("num_epochs: 2", "num_train_epochs", 2),
    ("epochs: 2", "num_train_epochs", 2),
    ("per_device_batch_size: 2", "per_device_train_batch_size", 2),
    ("micro_batch_size: 2", "per_device_train_batch_size", 2),
    ("per_gpu_train_batch_size: 2", "per_device_train_batch_size", 2),
    ("gradient_accumulation: 2", "gradient_accumulation_steps", 2),
    ("accumulation_steps: 2", "gradient_accumulation_steps", 2),
    ("lr: 1e-3", "learning_rate", 1e-3),
    ("lr_scheduler: linear", "lr_scheduler_type", "linear"),
    ("scheduler: linear", "lr_scheduler_type", "linear"),
    ("num_warmup_steps: 2", "warmup_steps", 2),
    ("gradient_clipping: 0.5", "max_grad_norm", 0.5),
    ("grad_clip: 0.5", "max_grad_norm", 0.5),
    ("torch_dtype: torch.bfloat16", "precision", "bf16"),
    ("dtype: float16", "precision", "fp16"),
    ("bf16: true", "precision", "bf16"),
    ("fp16: true", "precision", "fp16"),
    ("use_cpu: true", "device", "cpu"),
    ("no_cuda: true", "device", "cpu"),
    ("flash_attn: disabled", "attn_implementation", "eager"),
    ("{evaluation_strategy: epoch, eval_data: e}", "eval_steps", "epoch"),
    ("{eval_strategy: steps, eval_steps: 5, eval_data: e}", "eval_steps", 5),
    ("{load_best_model_at_end: true, eval_data: e}", "keep_best", True),
    ("{early_stopping_steps: 2, eval_data: e}", "early_stopping_patience", 2),
    ("report_to: tensorboard", "tensorboard", True),
    ("report_to: [tensorboard]", "tensorboard", True),
]
WITHOUT_EFFECT = [
    "stage: sft",
    "do_train: true",
    "do_eval: true",
    "fp16: false",
    "bf16: false",
    "pure_bf16: false",
    "tf32: false",
    "quantization_bit: null",
    "load_in_4bit: false",
    "load_in_8bit: false",
    "optim: adamw_torch",
    "use_reentrant: false",
    "metric_for_best_model: eval_loss",
    "greater_is_better: false",
    "save_strategy: steps",
    "logging_strategy: steps",
    "report_to: none",
    "report_to: []",
    "plot_loss: true",
    "overwrite_output_dir: false",
    "overwrite_cache: true",
    "save_safetensors: true",
    "resume_from_checkpoint: null",
    "push_to_hub: false",
    "trust_remote_code: false",
]
REFUSED = [
    ("dataset: alpaca_zh", "data takes the path of a file"),
    ("datasets: [{path: x}]", "data takes the path of a file"),
    ("dataset_dir: x", "data takes the path of a file"),
    ("val_size: 0.1", "eval_data takes a file of its own"),
    ("eval_split: 0.1", "eval_data takes a file of its own"),
    ("split_dataset_ratio: 0.1", "eval_data takes a file of its own"),
    ("template: qwen", "the checkpoint's own chat template"),
    ("stage: dpo", "supervised fine-tuning is all there is"),
    ("do_train: false", "train eval"),
    ("finetuning_type: full", "adapter is lora or oft"),
    ("batch_size: 8", "per_device_train_batch_size and gradient_accumulation_steps"),
    ("global_batch_size: 8", "per_device_train_batch_size and gradient_accumulation_steps"),
    ("per_device_eval_batch_size: 8", "per_device_train_batch_size"),
    ("optim: adafactor", "the optimizer is AdamW"),
    ("gradient_checkpointing_kwargs: {use_reentrant: true}", "non-reentrant"),
    ("use_reentrant: true", "non-reentrant"),
    ("data_seed: 1", "seed seeds"),
    ("torch_dtype: int8", "precision is auto, bf16, fp16 or fp32"),
    ("pure_bf16: true", "precision: bf16"),
    ("tf32: true", "chosen precision"),
    ("flash_attn: fa2", "attn_implementation is"),
    ("quantization_bit: 4", "unquantised"),
    ("load_in_4bit: true", "unquantised"),
    ("load_in_8bit: true", "unquantised"),
    ("evaluation_strategy: steps", "say eval_steps: N"),
    ("eval_strategy: no", "say eval_steps: N"),
    ("metric_for_best_model: accuracy", "lowest evaluation loss"),
    ("greater_is_better: true", "lowest evaluation loss"),
    ("save_strategy: epoch", "say save_steps: N"),
    ("logging_strategy: epoch", "say logging_steps: N"),
    ("logging_dir: x", "tensorboard: true"),
    ("report_to: wandb", "metrics.jsonl"),
    ("report_to: [wandb, tensorboard]", "metrics.jsonl"),
    ("plot_loss: false", "loss.png"),
    ("overwrite_output_dir: true", "never writes over another"),
    ("save_safetensors: false", "safetensors"),
    ("resume_from_checkpoint: x/checkpoint-5", "the same command"),
    ("push_to_hub: true", "nothing is sent"),
    ("trust_remote_code: true", "never run"),
]


def first_names(text: str) -> set[str]:
    """The names that a line of YAML gives, nested ones dotted."""
    import yaml

    values = yaml.safe_load(text)
    return set(values) | {f"lora.{name}" for name in values.get("lora") or ()}


def build(tmp_path: Path, text: str, **flags: Any) -> Any:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text + "\n", encoding="utf-8")
    names = first_names(text)
    given = {name: value for name, value in FLAGS.items() if not names & meaning(name)}
    return build_config(recipe, given | flags, [])


def meaning(field: str) -> set[str]:
    return {name for name, old in OLD.items() if old.new == field}


def test_every_old_name_has_a_row_here_and_means_a_field_that_exists() -> None:
    rows = [text for text, *_ in TAKEN] + WITHOUT_EFFECT + [text for text, _ in REFUSED]
    tested = set().union(*map(first_names, rows))
    assert not OLD.keys() - tested
    assert {old.new for old in OLD.values() if old.new} <= set(known_fields())
    assert not OLD.keys() & set(known_fields())


@pytest.mark.parametrize(("text", "field", "value"), TAKEN)
def test_a_name_that_means_one_field_is_taken_with_a_note(
    tmp_path: Path, text: str, field: str, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    found: Any = build(tmp_path, text)
    for part in field.split("."):
        found = getattr(found, part)
    if field == "data":
        (found,) = (source.path for source in found)
    assert (found, type(found)) == (value, type(value)) or found == pytest.approx(value)
    said = capsys.readouterr().out
    assert said.startswith(f"note: {tmp_path}/recipe.yaml: ")
    assert field in said or "has no effect" in said


@pytest.mark.parametrize("text", WITHOUT_EFFECT)
def test_a_name_that_asks_for_what_happens_anyway_is_noted(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(tmp_path, text).model_fields_set == set(FLAGS)
    assert "has no effect here" in capsys.readouterr().out


@pytest.mark.parametrize(("text", "cure"), REFUSED)
def test_a_name_that_means_nothing_here_is_an_error_with_its_cure(
    tmp_path: Path, text: str, cure: str
) -> None:
    with pytest.raises(UserError) as caught:
        build(tmp_path, text)
    name = text.partition(":")[0]
    assert caught.value.exit_code == EXIT_CONFIG
    assert f"recipe.yaml: {name}: " in caught.value.message
    assert cure in caught.value.message


def test_the_command_line_takes_old_names_and_wins_over_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("num_epochs: 1\nlearning_rate: 1\nlora: {rank: 2}\n", encoding="utf-8")
    config = build_config(recipe, FLAGS, ["num_train_epochs=2", "lr=3", "lora.r=4"])
    assert (config.num_train_epochs, config.learning_rate, config.lora.r) == (2, 3, 4)
    said = capsys.readouterr().out
    assert f"note: {recipe}: num_epochs is num_train_epochs here\n" in said
    assert f"note: {recipe}: lora.rank is lora.r here\n" in said
    assert "note: --set lr is learning_rate here\n" in said


def test_a_cut_length_is_noted_as_what_it_is_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build(tmp_path, "cutoff_len: 99")
    assert "longer rows are not cut" in capsys.readouterr().out


def test_all_faults_come_together_with_the_names_that_were_written(tmp_path: Path) -> None:
    text = "lora_rank: 0\nreport_to: wandb\nlr: 1e-3\nlearning_rate: 1e-4\nfp16: true\nbf16: true\nsede: 1"
    with pytest.raises(UserError) as caught:
        build(tmp_path, text)
    lines = caught.value.message.splitlines()
    for part in (
        "recipe.yaml: lora_rank: Input should be greater than or equal to 1",
        "recipe.yaml: report_to: is not taken with 'wandb'",
        "recipe.yaml: lr: is learning_rate here, which is given too",
        "recipe.yaml: bf16: is precision here, which is given too",
        "recipe.yaml: sede: no such field; did you mean seed?",
    ):
        assert sum(part in line for line in lines) == 1, (part, lines)
    assert len(lines) == 5
