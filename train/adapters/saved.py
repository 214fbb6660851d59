"""A trained adapter's folder: what it says of itself, and loading it with nothing missing or misread.

The kind is read from adapter_config.json, never from a flag. Reading needs no torch; loading does.
"""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from train.adapters.manifest import AdapterManifest, compare, read_manifest
from train.errors import EXIT_CONFIG, UserError, reading

if TYPE_CHECKING:
    import torch
    from peft import PeftModel
    from transformers import PreTrainedModel

CONFIG = "adapter_config.json"
WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
KINDS = {"LORA": "lora", "OFT": "oft"}
NEUMANN_FIXED = (0, 18)
"""PEFT 0.18 changed the last term of the Cayley-Neumann series (huggingface/peft#2805)."""
AGAIN = "put the file back as it was written: copy its folder again"
SHOWN_TENSORS = 3


@dataclass(frozen=True)
class AdapterConfig:
    """What an adapter's folder says of itself.

    `values`: adapter_config.json, in PEFT's words. `doubt`: why its weights may mean another rotation here,
    where only the manifest's fingerprint can tell.
    """

    folder: Path
    kind: str
    values: dict[str, Any] = field(repr=False)
    weights: Path
    manifest: AdapterManifest | None = field(repr=False)
    doubt: str = ""


def read_adapter_config(folder: Path) -> AdapterConfig:
    """Read adapter_config.json and isotune.json. UserError (exit 78) names everything that is wrong."""
    with reading(folder, "a run leaves its adapter in OUTPUT/adapter"):
        return _read(folder)


def _read(folder: Path) -> AdapterConfig:
    if not folder.is_dir():
        raise _no_folder(folder)
    weights = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    faults = [] if weights else [f"{folder}: has no adapter weights ({' or '.join(WEIGHTS)})"]
    values: dict[str, Any] = {}
    try:
        values = read_json(folder / CONFIG)
    except UserError as fault:
        faults.append(fault.message)
    kind = KINDS.get(str(values.get("peft_type")).upper(), "")
    if not kind and (values or not faults):
        known = ", ".join(KINDS)
        faults.append(f"{folder / CONFIG}: peft_type {values.get('peft_type')!r}: supported are {known}")
    manifest = None
    try:
        manifest = read_manifest(folder)
    except UserError as fault:
        faults.append(fault.message)
    doubt = ""
    if kind == "oft":
        faults += _oft_faults(folder, values)
        doubt = _doubt(folder, values)
        faults += [doubt] if doubt and manifest is None else []
    if faults or weights is None:
        raise UserError("\n".join(faults), _hint(folder), EXIT_CONFIG)
    return AdapterConfig(folder, kind, values, weights, manifest, doubt)


def _no_folder(folder: Path) -> UserError:
    if str(folder) in KINDS.values():
        return UserError(
            f"--adapter {folder}: is a kind of adapter; here the folder of a trained one is due",
            "the kind is read from the folder, for example --adapter OUTPUT/adapter",
            EXIT_CONFIG,
        )
    what = "is a file" if folder.exists() else "does not exist"
    return UserError(
        f"{folder}: {what}; the folder of a trained adapter is due",
        "a run leaves it in OUTPUT/adapter; in a container mount it: -v /path/to/run:/run:ro",
        EXIT_CONFIG,
    )


def _hint(folder: Path) -> str:
    if (folder / "adapter" / CONFIG).exists():
        return f"this is a run's folder: its adapter is {folder / 'adapter'}"
    return "copy the adapter's folder again, or retrain it"


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; UserError (exit 78) where there is none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as fault:
        raise UserError(f"{path}: cannot be read: {fault.strerror}", AGAIN, EXIT_CONFIG) from None
    except (ValueError, RecursionError) as fault:
        raise UserError(f"{path}: is not valid JSON: {fault}", AGAIN, EXIT_CONFIG) from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: is not a JSON object", AGAIN, EXIT_CONFIG)
    return values


def _oft_faults(folder: Path, values: dict[str, Any]) -> list[str]:
    if "oft_block_size" in values:
        return []
    return [
        f"{folder / CONFIG}: has no oft_block_size: it is of PEFT before 0.14, whose OFT weights mean "
        "something else; use peft 0.13 for it, or retrain"
    ]


def _doubt(folder: Path, values: dict[str, Any]) -> str:
    """Why a series may be read differently than it was trained; empty where it is not.

    A config without `use_cayley_neumann` counts as a series: PEFT's default reads it so.
    """
    version = str(values.get("peft_version") or "")
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if not values.get("use_cayley_neumann", True):
        return ""
    if numbers and (int(numbers[1]), int(numbers[2])) >= NEUMANN_FIXED:
        return ""
    return (
        f"{folder / CONFIG}: a Cayley-Neumann series with peft_version {version or 'missing'}: PEFT 0.18 "
        "changed its last term, so the same weights mean another rotation; use peft 0.17 for it, or retrain"
    )


def load_adapter(
    model: PreTrainedModel, folder: Path, trainable: bool, lines: IO[str] | None = None
) -> PeftModel:
    """The base with a saved adapter on it. Trainable parameters are fp32, whatever the base holds.

    UserError (exit 78) where a tensor is missing, left over, of another shape or not finite, and where the
    manifest's fingerprint shows another base or another reading. What could not be compared is noted on
    `lines` (stdout).
    """
    from peft import PeftModel

    saved = read_adapter_config(folder)
    notes = _unknown_fields(saved)
    tensors = _read_tensors(saved)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PEFT warns of what is an error below, and of its own defaults
            adapted = PeftModel.from_pretrained(
                model,
                str(folder),
                is_trainable=trainable,
                torch_device="cpu",  # PEFT would read the file through any card that it finds
                autocast_adapter_dtype=True,
                ignore_mismatched_sizes=True,
            )
    except Exception as fault:  # a foreign base or a damaged file raises many kinds
        reason = str(fault).strip().splitlines()[0] if str(fault).strip() else type(fault).__name__
        raise UserError(
            f"{folder}: does not load on {model.name_or_path}: {reason}",
            "is it an adapter of this base model?",
            EXIT_CONFIG,
        ) from None
    _check_tensors(adapted, saved, tensors)
    from train.adapters.attach import batched

    adapted = batched(adapted)
    notes += compare(adapted, saved)
    for note in notes:
        print(f"note: {note}", file=lines, flush=True)
    return adapted


def _unknown_fields(saved: AdapterConfig) -> list[str]:
    """Notes on fields of a newer PEFT that are at rest; UserError (exit 78) for those that say something."""
    import inspect

    from peft import LoraConfig, OFTConfig

    kinds: dict[str, Any] = {"lora": LoraConfig, "oft": OFTConfig}
    known = inspect.signature(kinds[saved.kind]).parameters
    unknown = {name: value for name, value in saved.values.items() if name not in known}
    wanted = {name: value for name, value in unknown.items() if value}
    if wanted:
        fields = ", ".join(f"{name}={value!r}" for name, value in wanted.items())
        version = saved.values.get("peft_version", "unknown")
        raise UserError(
            f"{saved.folder / CONFIG}: fields that this PEFT does not know: {fields}",
            f"the adapter was written by peft {version}: use that version",
            EXIT_CONFIG,
        )
    return [f"{CONFIG}: unknown to this PEFT and off: {', '.join(sorted(unknown))}"] if unknown else []


def _read_tensors(saved: AdapterConfig) -> dict[str, torch.Tensor]:
    from peft import load_peft_weights

    try:
        return load_peft_weights(str(saved.folder), device="cpu")
    except Exception as fault:  # safetensors and pickle raise their own kinds
        raise UserError(
            f"{saved.weights}: does not load: {fault}", "copy the adapter again", EXIT_CONFIG
        ) from None


def _check_tensors(adapted: PeftModel, saved: AdapterConfig, tensors: dict[str, torch.Tensor]) -> None:
    """Every tensor of the file is used, every one of the adapter is filled, all are finite."""
    from peft import get_peft_model_state_dict

    due = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    whole = adapted.state_dict().keys()  # a resized vocabulary's embeddings come under their own names
    missing = sorted(due.keys() - tensors.keys())
    left_over = sorted(tensors.keys() - due.keys() - whole)
    shapes = [
        f"{name} {list(tensors[name].shape)} for {list(tensor.shape)}"
        for name, tensor in due.items()
        if name in tensors and tensors[name].shape != tensor.shape
    ]
    broken = [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]
    found = {
        "missing, so it would do nothing there": missing,
        "for no layer of this model": left_over,
        "of another shape": shapes,
        "not finite": broken,
    }
    faults = [f"{saved.weights}: {_some(names)}: {what}" for what, names in found.items() if names]
    if faults:
        raise UserError(
            "\n".join(faults), _cause(saved, bool(missing or left_over), bool(shapes)), EXIT_CONFIG
        )


def _some(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN_TENSORS} more" if len(names) > SHOWN_TENSORS else ""
    return f"{len(names)} tensors ({', '.join(names[:SHOWN_TENSORS])}{more})"


def _cause(saved: AdapterConfig, names_differ: bool, shapes_differ: bool) -> str:
    if names_differ:
        return (
            "the base model has other layers or layer names: give the base that the adapter was trained on, "
            "loaded by the model class and the transformers version it was trained with"
        )
    if shapes_differ:
        size = "oft_block_size" if saved.kind == "oft" else "r"
        return f"the base model has other sizes, or {size} in {CONFIG} is not what was trained"
    return "the training diverged or the file is damaged: retrain, or copy it again"
