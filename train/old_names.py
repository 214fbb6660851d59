"""Names of older transformers, LLaMA-Factory, TRL, ms-swift and axolotl, and what they are here.

A name is taken, with a note, where it means exactly one field; else it is an error that says what to do.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

DROP = object()
"""This value is what happens anyway: it is left out."""
WITH_NEW = object()
"""This value is left out where the new field is given too; alone it is an error."""


@dataclass(frozen=True)
class Old:
    """What an old name is here.

    new: the field; empty where there is none. values: old value -> new one, and every other value is an
    error; None: any value is taken as it is. cure: the error's advice. note: how the meaning differs.
    """

    new: str = ""
    values: Mapping[Any, Any] | None = None
    cure: str = ""
    note: str = ""


@dataclass
class Translation:
    """What became of an old name: the new field and its value (None: nothing to set), or a fault."""

    new: str | None = None
    value: Any = None
    note: str = ""
    fault: str = ""


def _same(new: str, *names: str, note: str = "") -> dict[str, Old]:
    return {name: Old(new, note=note) for name in names}


def _none(cure: str, *names: str) -> dict[str, Old]:
    return {name: Old(values={}, cure=cure) for name in names}


NEVER_CUT = "longer rows are not cut: `overlong` says what becomes of them"
DTYPES = {"auto": "auto", "bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}
DTYPES |= {name: name for name in ("bf16", "fp16", "fp32")}
SETS = {"epoch": "epoch", "steps": WITH_NEW}
KINDS = {"lora": "lora", "oft": "oft", "LORA": "lora", "OFT": "oft"}
UNUSED = {False: DROP, "none": DROP}
QUANTISED = "adapters train on unquantised weights here: leave it out"

OLD: dict[str, Old] = {
    # the run
    **_same("model", "model_name_or_path", "model_name", "model_path", "base_model", "model_id"),
    **_same("output", "output_dir", "save_dir"),
    **_same("data", "train_file", "train_data", "dataset_path", "data_path"),
    **_same("eval_data", "eval_file", "validation_file", "eval_dataset", "val_dataset", "val_data"),
    **_same("init_adapter", "adapter_name_or_path"),
    "finetuning_type": Old("adapter", KINDS, "adapter is lora or oft"),
    "peft_type": Old("adapter", KINDS, "adapter is lora or oft"),
    "train_type": Old("adapter", KINDS, "adapter is lora or oft"),
    **_none("data takes the path of a file", "dataset", "datasets", "dataset_dir"),
    **_none("eval_data takes a file of its own", "val_size", "eval_split", "split_dataset_ratio"),
    **_none("the checkpoint's own chat template is used: leave it out", "template"),
    "stage": Old(values={"sft": DROP}, cure="supervised fine-tuning is all there is"),
    "do_train": Old(values={True: DROP}, cure="train eval evaluates without training"),
    "do_eval": Old(values={True: DROP, False: DROP}, note="it is evaluated where eval_data is given"),
    # adapters
    **_same("lora.r", "lora_rank", "lora_r", "r", "lora.rank"),
    **_same("lora.lora_alpha", "lora_alpha", "lora.alpha"),
    **_same("lora.lora_dropout", "lora_dropout", "lora.dropout"),
    **_same("lora.use_rslora", "use_rslora"),
    **_same("lora.use_dora", "use_dora"),
    **_same("oft.oft_block_size", "oft_block_size"),
    **_same("target_modules", "lora_target", "lora_target_modules"),
    # rows
    **_same("max_length", "cutoff_len", "max_seq_length", "max_seq_len", "sequence_len", note=NEVER_CUT),
    "enable_thinking": Old("thinking", {True: "on", False: "off"}, "thinking is auto, on or off"),
    # steps and learning rate
    **_same("num_train_epochs", "num_epochs", "epochs"),
    **_same(
        "per_device_train_batch_size", "per_device_batch_size", "micro_batch_size", "per_gpu_train_batch_size"
    ),
    **_same("gradient_accumulation_steps", "gradient_accumulation", "accumulation_steps"),
    **_same("learning_rate", "lr"),
    **_same("lr_scheduler_type", "lr_scheduler", "scheduler"),
    **_same("warmup_steps", "num_warmup_steps"),
    **_same("max_grad_norm", "gradient_clipping", "grad_clip"),
    **_none(
        "say per_device_train_batch_size and gradient_accumulation_steps", "batch_size", "global_batch_size"
    ),
    "per_device_eval_batch_size": Old(
        "per_device_train_batch_size", {}, "evaluation takes batches of per_device_train_batch_size"
    ),
    "optim": Old(
        values={"adamw_torch": DROP, "adamw_torch_fused": DROP, "adamw_hf": DROP},
        cure="the optimizer is AdamW, fused where torch has it",
    ),
    "gradient_checkpointing_kwargs": Old(
        values={}, cure="gradient_checkpointing: true is the non-reentrant kind: leave it out"
    ),
    "use_reentrant": Old(values={False: DROP}, cure="checkpointing is non-reentrant always"),
    "data_seed": Old(values={}, cure="seed seeds weights, order and dropout"),
    # device and numbers
    "torch_dtype": Old("precision", DTYPES, "precision is auto, bf16, fp16 or fp32"),
    "dtype": Old("precision", DTYPES, "precision is auto, bf16, fp16 or fp32"),
    "bf16": Old("precision", {True: "bf16", False: DROP}, "precision is auto, bf16, fp16 or fp32"),
    "fp16": Old("precision", {True: "fp16", False: DROP}, "precision is auto, bf16, fp16 or fp32"),
    "pure_bf16": Old(
        values={False: DROP}, cure="precision: bf16 keeps what is trained in fp32; that is what there is"
    ),
    "tf32": Old(values={False: DROP}, cure="products are in the chosen precision: leave it out"),
    "use_cpu": Old("device", {True: "cpu", False: DROP}, "device is auto, cuda, npu or cpu"),
    "no_cuda": Old("device", {True: "cpu", False: DROP}, "device is auto, cuda, npu or cpu"),
    "flash_attn": Old(
        "attn_implementation",
        {"auto": "auto", "sdpa": "sdpa", "disabled": "eager", False: "eager"},
        "attn_implementation is auto, sdpa or eager",
    ),
    "quantization_bit": Old(values=UNUSED, cure=QUANTISED),
    "load_in_4bit": Old(values=UNUSED, cure=QUANTISED),
    "load_in_8bit": Old(values=UNUSED, cure=QUANTISED),
    # evaluation, logging, saving
    "evaluation_strategy": Old(
        "eval_steps", SETS, "say eval_steps: N or epoch; without eval_data there is none"
    ),
    "eval_strategy": Old("eval_steps", SETS, "say eval_steps: N or epoch; without eval_data there is none"),
    "load_best_model_at_end": Old("keep_best"),
    "metric_for_best_model": Old(
        values={"loss": DROP, "eval_loss": DROP},
        cure="the best is that of the lowest evaluation loss of best_by",
    ),
    "greater_is_better": Old(values={False: DROP}, cure="the lowest evaluation loss is the best"),
    **_same("early_stopping_patience", "early_stopping_steps"),
    "save_strategy": Old("save_steps", {"steps": DROP}, "say save_steps: N"),
    "logging_strategy": Old("logging_steps", {"steps": DROP}, "say logging_steps: N"),
    **_none("tensorboard: true writes OUTPUT/tensorboard", "logging_dir"),
    "report_to": Old(
        "tensorboard",
        {"none": DROP, "tensorboard": True},
        "figures are in metrics.jsonl, and with tensorboard: true in tensorboard/; nothing reports elsewhere",
    ),
    "plot_loss": Old(values={True: DROP}, cure="loss.png is made in any case"),
    "overwrite_output_dir": Old(
        values={False: DROP}, cure="a run never writes over another: name a new output, or remove the old one"
    ),
    "overwrite_cache": Old(values={True: DROP, False: DROP}),
    "save_safetensors": Old(values={True: DROP}, cure="weights are written as safetensors"),
    "resume_from_checkpoint": Old(
        values=UNUSED | {True: DROP},
        cure="the same command on the same output goes on from its newest checkpoint",
    ),
    "push_to_hub": Old(values={False: DROP}, cure="nothing is sent anywhere"),
    "trust_remote_code": Old(values={False: DROP}, cure="code of a checkpoint is never run"),
}

SPELLINGS = {"lora_target": {"all": "auto"}, "lora_target_modules": {"all-linear": "auto"}}
"""Values that are spelled otherwise here."""


def translate(name: str, value: Any, given: Collection[str]) -> Translation | None:
    """What an old name with this value is here; None for a name that is not in the table.

    `given`: the fields that are given beside it.
    """
    old = OLD.get(name)
    if old is None:
        return None
    if old.values is None:
        found = SPELLINGS.get(name, {}).get(value, value) if isinstance(value, str) else value
    else:
        found = _looked_up(old.values, value)
        if found is WITH_NEW and old.new in given:
            found = DROP
        if found is None or found is WITH_NEW:
            shown = f"is not taken with {value!r}" if old.values else "is no field"
            return Translation(fault=f"{shown}: {old.cure}")
    meaning = f"; {old.note}" if old.note else ""
    if found is DROP:
        return Translation(note=f"{name}: {value} has no effect here{meaning}")
    if old.new in given:
        return Translation(fault=f"is {old.new} here, which is given too: say it once")
    return Translation(old.new, found, note=f"{name} is {old.new} here{meaning}")


def _looked_up(values: Mapping[Any, Any], value: Any) -> Any:
    """The new value, None where there is none. Booleans are no numbers, and a list of one is its entry."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None or value == []:
        value = "none"
    if isinstance(value, str):
        value = value.removeprefix("torch.")
    if not isinstance(value, bool | str):
        return None
    return next((new for old, new in values.items() if type(old) is type(value) and old == value), None)
