"""Base and adapter to one plain checkpoint, checked in memory and from its files: `train merge`."""

from __future__ import annotations

import gc
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from train import __version__, hub
from train.adapters import oft
from train.adapters.fingerprint import (
    difference,
    make_probe,
    percent,
    probe_logits,
    tolerance,
    without_adapter,
)
from train.adapters.manifest import base_files, parametrisation, present_versions
from train.adapters.saved import read_adapter_config
from train.data.records import hash_file
from train.errors import EXIT_CONFIG, EXIT_TRAINING, MAKE_ROOM, UserError, is_disk_full, place_of, reading
from train.loop.model import hash_folder, load_model, share_files
from train.results.opened import ModelOptions, Opened, load, open_checkpoint

if TYPE_CHECKING:
    import torch

DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
LARGEST_ORTHOGONALITY_ERROR = 0.05
"""Above it an OFT adapter stretches what it should only turn; exact Cayley stays below 1e-5."""


@dataclass(frozen=True)
class MergeOptions:
    """`dtype`: auto (that of the base's files), fp32, bf16 or fp16. `force`: also merge an OFT adapter that
    is no rotation any more.
    """

    model: Path
    adapter: Path
    output: Path
    dtype: str = "auto"
    force: bool = False
    device: str = "auto"
    probe: str = "auto"


def merge(options: MergeOptions, lines: IO[str]) -> dict[str, Any]:
    """Write a plain transformers checkpoint with tokenizer and merged.json; returns what merged.json holds.

    UserError: 78 for places and settings, 69 for the device, 70 where the adapter is no rotation or the
    merged model's logits are not those of base and adapter; nothing is then left in `output`.
    """
    check_new_folder(options.output)
    asked = ModelOptions(options.model, options.adapter, options.device, "fp32", probe=options.probe)
    with _written_aside(options.output) as folder:
        opened = open_checkpoint(asked, lines)
        dtype, checks = _merge_into(folder, opened, options, lines)
        report = _report(options, dtype, checks)
        (folder / "merged.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        share_files(folder)
    return report


def _merge_into(
    folder: Path, opened: Opened, options: MergeOptions, lines: IO[str]
) -> tuple[str, dict[str, Any]]:
    """Load, merge, save, reload; the dtype of what was saved, and the figures of the comparisons."""
    import torch

    stored = _stored_dtype(opened)
    wanted = stored if options.dtype == "auto" else DTYPES[options.dtype]
    computed = stored if wanted == stored else "float32"  # one rounding, not two
    allowed = tolerance(computed, wanted)
    adapted = load(opened, lines, getattr(torch, computed))
    checks: dict[str, Any] = {"allowed": allowed}
    checks["orthogonality_error"] = _require_rotations(adapted, options)
    probe = make_probe(adapted.get_output_embeddings().weight.shape[0])
    reference = probe_logits(adapted.get_base_model(), probe)
    with without_adapter(adapted):
        base = probe_logits(adapted.get_base_model(), probe)
    checks["effect_on_logits"] = difference(base, reference, reference)
    if not checks["effect_on_logits"] > allowed:
        print(_cannot_tell(checks, wanted), file=lines)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PEFT's word on ties: `_untie` says it
        merged = adapted.merge_and_unload()
    _require_plain(merged)
    checks["in_memory"] = _check(
        "merged in memory", probe_logits(merged, probe), reference, tolerance(computed)
    )
    merged.to(getattr(torch, wanted))
    _untie(merged, opened, lines)
    _save(merged, opened, folder)
    del merged, adapted
    _free(opened.choices.device.value)
    again: Any = load_model(folder, getattr(torch, wanted), opened.choices.attn_implementation.value)
    logits = probe_logits(again.to(opened.choices.device.value), probe)
    checks["reloaded"] = _check("merged and reloaded", logits, reference, allowed)
    return wanted, checks


def _free(device: str) -> None:
    """Give back the memory of the model that was merged, before its copy is loaded beside it."""
    import torch

    gc.collect()  # adapter layers and what they share refer to each other
    if device != "cpu":
        getattr(torch, device.partition(":")[0]).empty_cache()


def _cannot_tell(checks: dict[str, Any], dtype: str) -> str:
    effect, allowed = percent(checks["effect_on_logits"]), percent(checks["allowed"])
    return (
        f"note: the adapter changes the logits by {effect} of their spread, rounding in {dtype} by up to "
        f"{allowed}: the check cannot tell whether it was merged"
    )


def _report(options: MergeOptions, dtype: str, checks: dict[str, Any]) -> dict[str, Any]:
    """What merged.json holds: from which files the checkpoint was made, and how well it equals them."""
    saved = read_adapter_config(options.adapter)
    return {
        "schema": 1,
        "isotune": __version__,
        "versions": present_versions(),
        "base": {"folder": hub.name_of(options.model), "files": base_files(hash_folder(options.model))},
        "adapter": {
            "folder": str(options.adapter),
            "kind": saved.kind,
            "weights": hash_file(saved.weights),
            "parametrisation": parametrisation(saved.kind, saved.values),
        },
        "dtype": dtype,
        "checks": checks,
    }


def check_new_folder(folder: Path) -> None:
    """UserError (exit 78) where a checkpoint may not or cannot be written: nothing is ever written over."""
    where = f"--output {place_of(folder)}"
    with reading(where, "name another folder"):
        _require_new(folder, where)


def _require_new(folder: Path, where: str) -> None:
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{where}: is a file", "name a new folder", EXIT_CONFIG)
    entries = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    if entries:
        raise UserError(f"{where}: is not empty ({', '.join(entries[:5])})", "name a new folder", EXIT_CONFIG)
    beside = folder.absolute().parent
    place = next(parent for parent in (beside, *beside.parents) if parent.exists())
    if os.path.ismount(folder) or not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise UserError(
            f"{where}: cannot be made: it is written beside, in {place}, and moved when it is right; "
            f"uid {os.getuid()} cannot do so there",
            f"name a folder below one that is writable, for example {folder / 'merged'}",
            EXIT_CONFIG,
        )


def _stored_dtype(opened: Opened) -> str:
    """The dtype of the base's files, as its config.json says; UserError (exit 78) for quantised ones."""
    config = opened.model_config
    stored = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    if config.get("quantization_config") or stored not in DTYPES.values():
        what = "is quantised" if config.get("quantization_config") else f"has dtype {stored}"
        raise UserError(
            f"--model {opened.options.model}: {what}: an adapter merges into fp32, bf16 or fp16 weights",
            "give the checkpoint that it was quantised from",
            EXIT_CONFIG,
        )
    return stored


def _require_rotations(adapted: Any, options: MergeOptions) -> float | None:
    """The largest |R R^T - I|, None without rotations; UserError (exit 70) where it is too large."""
    if adapted.peft_config["default"].peft_type != "OFT":
        return None
    error = oft.orthogonality_error(adapted)
    if not error <= LARGEST_ORTHOGONALITY_ERROR and not options.force:
        raise UserError(
            f"{options.adapter}: its rotations are none any more: largest |R R^T - I| is {error:.3g}, "
            f"{LARGEST_ORTHOGONALITY_ERROR} is allowed",
            "train with oft.cayley=exact or a lower learning_rate; --force merges it as it is",
            EXIT_TRAINING,
        )
    return error


def _require_plain(merged: Any) -> None:
    from peft.tuners.tuners_utils import BaseTunerLayer

    left = [name for name, module in merged.named_modules() if isinstance(module, BaseTunerLayer)]
    if left:
        raise UserError(f"merge: {len(left)} layers kept their adapter, {left[0]} first", "", EXIT_TRAINING)


def _check(what: str, logits: torch.Tensor, reference: torch.Tensor, allowed: float) -> float:
    off = difference(logits, reference, reference)
    if not off <= allowed:
        raise UserError(
            f"{what}: logits differ from those of base and adapter by {percent(off)} of their spread, "
            f"{percent(allowed)} is allowed",
            "nothing was kept; --dtype fp32 loses least",
            EXIT_TRAINING,
        )
    return off


@contextmanager
def _written_aside(output: Path) -> Iterator[Path]:
    """A folder beside `output` that takes its place when all went well, and is removed else."""
    aside = output.absolute().parent / f".{output.name}.{os.getpid()}.partial"
    try:
        aside.mkdir(parents=True)
    except OSError as fault:
        raise UserError(
            f"--output {output}: cannot be made: {fault.strerror}", "name another folder", EXIT_CONFIG
        ) from None
    try:
        yield aside
        aside.replace(output)  # an empty folder of that name gives way
    except Exception as fault:  # safetensors and tokenizers have kinds of their own for a full disk
        if not is_disk_full(fault):
            raise
        raise UserError(
            f"--output {output}: the disk is full: nothing was kept", MAKE_ROOM, EXIT_CONFIG
        ) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _untie(merged: Any, opened: Opened, lines: IO[str]) -> None:
    """Embeddings that were trained apart must not be tied on the next load: one would overwrite the other."""
    head, embeddings = merged.get_output_embeddings().weight, merged.get_input_embeddings().weight
    if opened.model_config.get("tie_word_embeddings") and not bool((head == embeddings).all()):
        merged.config.tie_word_embeddings = False
        print("note: the adapter trained embeddings and head apart: they are tied no more", file=lines)


def _save(merged: Any, opened: Opened, folder: Path) -> None:
    """Weights, config, tokenizer with chat template; the base's generation config with every stop token."""
    tokenizer: Any = opened.template.tokenizer
    merged.config.use_cache = opened.model_config.get("use_cache", True)
    generation = merged.generation_config
    generation.eos_token_id = opened.stop_token_ids
    if generation.pad_token_id is None:
        pad = tokenizer.pad_token_id
        generation.pad_token_id = pad if pad is not None else opened.stop_token_ids[0]
    try:
        merged.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except ValueError as fault:  # transformers refuses to write a generation config that contradicts itself
        reason = str(fault).strip().splitlines()[0]
        raise UserError(f"--model {opened.options.model}: {reason}", "mend that file", EXIT_CONFIG) from None
