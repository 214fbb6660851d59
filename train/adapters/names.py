"""Names of modules: which part of a model they are of, and of which kind."""

from __future__ import annotations

from train.families import EXPERTS

VISION = "visual"
"""The part of a module's name that is the vision tower in Qwen's multimodal models."""
SHARED = "shared_expert"


def in_vision(name: str) -> bool:
    return VISION in name.split(".")


def last_part(name: str) -> str:
    return name.rsplit(".", 1)[-1]


def kind_of(name: str) -> str:
    """The last part of a name; before it the vision tower, the experts or the shared expert it is of."""
    parts = name.split(".")
    of = (part for part in (VISION, EXPERTS, SHARED) if part in parts[:-1])
    return ".".join([*of, parts[-1]])
