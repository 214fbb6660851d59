"""What is known of Qwen's model families: what `auto` adapts, what the tests have shown, what is not taken.

Reads no library but its version: `train info --families` is quick.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

TESTED_SETS = {"4.57.6": "0.18.1", "5.14.1": "0.21.2", "5.20.2": "0.21.2"}
"""transformers -> peft: the sets of libraries with which tests/train/test_families.py was run."""
ALL, SINCE_5_14, SINCE_5_20 = tuple(TESTED_SETS), ("5.14.1", "5.20.2"), ("5.20.2",)

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
DELTA_NET_2 = ("in_proj_qkvz", "in_proj_ba", "out_proj")
DELTA_NET_4 = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj")
ROUTERS = ("gate", "shared_expert_gate", "router")
"""Linear layers that decide which expert sees a token: never adapted."""
EXPERTS = "experts"
"""The part of a module's name that holds the experts of a layer."""
VISION_KNOWN = ("qwen2_5_vl",)
"""Types of whole models, not loaded by the text path, on whose layers the batched adapters are tested."""


@dataclass(frozen=True)
class ModelFamily:
    """A family of text models, and what tests/train/test_families.py shows of it: that file runs every field.

    model_types: those of config.json. adapts: last names of the layers that `auto` adapts. parts: the same in
    words. tested_with: versions of transformers with which LoRA and OFT attach, get gradients, train, are
    saved, load, and merge. packs_with: those with which samples packed into one row do not see each other.
    fused_with: those that hold a layer's experts as one tensor, which no adapter takes hold of.
    lora_leaves_mlp: those with which PEFT takes the names of MLP layers for experts: OFT alone adapts them.
    """

    name: str
    model_types: tuple[str, ...]
    adapts: tuple[str, ...]
    parts: str
    tested_with: tuple[str, ...]
    packs_with: tuple[str, ...] = ()
    fused_with: tuple[str, ...] = ()
    lora_leaves_mlp: tuple[str, ...] = ()


FAMILIES = (
    ModelFamily("Qwen2, Qwen2.5", ("qwen2",), ATTENTION + MLP, "attention, MLP", ALL, packs_with=ALL),
    ModelFamily("Qwen3", ("qwen3",), ATTENTION + MLP, "attention, MLP", ALL, packs_with=ALL),
    ModelFamily(
        "Qwen1.5-MoE, Qwen2-MoE", ("qwen2_moe",), ATTENTION + MLP, "attention, MLP, shared expert",
        ALL, packs_with=SINCE_5_14, fused_with=SINCE_5_14,
    ),
    ModelFamily(
        "Qwen3-MoE", ("qwen3_moe",), ATTENTION + MLP, "attention, MLP",
        ALL, packs_with=ALL, fused_with=SINCE_5_14, lora_leaves_mlp=SINCE_5_14,
    ),
    ModelFamily(
        "Qwen3-Next", ("qwen3_next",), ATTENTION + DELTA_NET_2 + MLP,
        "attention, linear attention, MLP, shared expert",
        ALL, fused_with=SINCE_5_14, lora_leaves_mlp=SINCE_5_14,
    ),
    ModelFamily(
        "Qwen3.5 (text part)", ("qwen3_5", "qwen3_5_text"), ATTENTION + DELTA_NET_4 + MLP,
        "attention, linear attention, MLP", SINCE_5_14,
    ),
    ModelFamily(
        "Qwen3.5-MoE (text part)", ("qwen3_5_moe", "qwen3_5_moe_text"), ATTENTION + DELTA_NET_4 + MLP,
        "attention, linear attention, shared expert", SINCE_5_14, fused_with=SINCE_5_14,
    ),
    ModelFamily(
        "Qwen4-Exp (text part)", ("qwen4_exp", "qwen4_exp_text"), ATTENTION + DELTA_NET_4 + MLP,
        "attention, linear attention, shared expert", SINCE_5_20, fused_with=SINCE_5_20,
    ),
)  # fmt: skip

REFUSED = (
    "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe",
    "qwen2_5_omni", "qwen3_omni_moe", "qwen2_audio", "qwen3_asr",
)  # fmt: skip
"""Types for which transformers has no text model of its own: AutoModelForCausalLM does not know them."""


def model_type_of(model_config: Any) -> str:
    """`model_type` of a config.json that was read, or of transformers' configuration."""
    found = model_config.get("model_type") if isinstance(model_config, dict) else model_config.model_type
    return str(found)


def family_of(model_type: str) -> ModelFamily | None:
    """The family of a `model_type`; None where nothing is known of it."""
    return next((family for family in FAMILIES if model_type in family.model_types), None)


def may_pack(model_config: Any) -> bool:
    """Whether samples may be put into one row, as far as it is known before a model is there to try it on.

    No for unknown types, and for layers with a state that runs on from sample to sample.
    """
    family = family_of(model_type_of(model_config))
    if family is None:
        return False
    version = transformers_version()
    return version in family.packs_with if version in TESTED_SETS else bool(family.packs_with)


def may_batch(model_type: str) -> bool:
    """Whether an adapter's layers are computed together; layers of unknown types stay PEFT's own."""
    return family_of(model_type) is not None or model_type in VISION_KNOWN


def missing_here(model_type: str) -> str:
    """Why the installed transformers cannot load a known family; empty where it can, or nothing is known."""
    family, version = family_of(model_type), transformers_version()
    if family is None or version not in TESTED_SETS or version in family.tested_with:
        return ""
    return f"transformers {version} does not have it, {family.tested_with[0]} does"


def of_text(content: dict[str, Any]) -> dict[str, Any]:
    """A config.json with the fields of its text part in the place of the whole's, but for `model_type`."""
    return {**content, **(content.get("text_config") or {}), "model_type": content["model_type"]}


def is_text_part(model_type: str) -> bool:
    """Whether a checkpoint of this type holds more than the text model that is loaded of it."""
    family = family_of(model_type)
    return family is not None and f"{model_type}_text" in family.model_types


def may_lack_gradient(name: str) -> bool:
    """Whether a tensor can be without a gradient in a sound run: an expert that no token was sent to."""
    return EXPERTS in name.split(".")


def transformers_version() -> str:
    return metadata.version("transformers")


def notes(model_config: Any) -> list[str]:
    """What a run says of its model's family: not known, not tested with this transformers, only a part."""
    model_type = model_type_of(model_config)
    family = family_of(model_type)
    if family is None:
        known = ", ".join(name for one in FAMILIES for name in one.model_types)
        return [
            f"note: model type {model_type} is not one that isotune tests ({known}): every linear layer but "
            "head and routers is adapted, layers are computed one by one, samples are not packed"
        ]
    found = []
    if (version := transformers_version()) not in family.tested_with:
        tested = ", ".join(family.tested_with)
        found.append(f"note: {family.name} is tested with transformers {tested}; this is {version}")
    if is_text_part(model_type):
        found.append(
            f"note: {model_type}: the text part alone is loaded and trained; what else the checkpoint has "
            "(vision tower, prediction heads) is in no merged checkpoint"
        )
    return found


def table() -> list[dict[str, Any]]:
    """The rows of `train info --families`."""
    return [
        {
            "family": family.name,
            "model_type": list(family.model_types),
            "adapted": family.parts,
            "experts": _experts(family),
            "lora leaves out": [f"MLP with {', '.join(family.lora_leaves_mlp)}"]
            * bool(family.lora_leaves_mlp),
            "lora, oft, merge": list(family.tested_with),
            "packing": list(family.packs_with),
        }
        for family in FAMILIES
    ]


def _experts(family: ModelFamily) -> str:
    if not family.fused_with:
        return "none"
    apart = [version for version in family.tested_with if version not in family.fused_with]
    return f"adapted with {', '.join(apart)} only" if apart else "not adapted"


def table_lines() -> list[str]:
    """The table for a reader, with what it was tested with and what is installed here."""
    head = [
        "family",
        "model_type",
        "auto adapts",
        "experts",
        "LoRA leaves out",
        "LoRA, OFT, merge",
        "packing",
    ]
    rows = [head, *([_cell(value) for value in row.values()] for row in table())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    sets = "; ".join(f"transformers {one} with peft {other}" for one, other in TESTED_SETS.items())
    return [
        *lines,
        "",
        f"The last two columns name versions of transformers. Tested: {sets}.",
        f"Here: transformers {transformers_version()}, peft {metadata.version('peft')}.",
        f"Not taken: {', '.join(REFUSED)} (no text model of their own in transformers).",
        "Any other model type is told so and runs on the safe path: PEFT's own layers, padded batches.",
    ]


def _cell(value: Any) -> str:
    return (", ".join(value) or "-") if isinstance(value, list) else str(value)


def routers_among(names: Iterable[str]) -> list[str]:
    """Of last parts of names those that are routers."""
    return sorted(set(names) & set(ROUTERS))
