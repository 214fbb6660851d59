"""The strict types of a recipe's fields.

PyYAML reads `1e-4` as text and `yes` as a boolean: numbers are accepted as text, booleans never as numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


def _not_boolean(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number is due, this is true/false (YAML reads yes, no, on and off so)")
    return value


MANY = 10**9
"""More steps, tokens or rows than any run has; a larger number would overflow somewhere below."""
Whole = Annotated[int, BeforeValidator(_not_boolean)]
Number = Annotated[float, BeforeValidator(_not_boolean), Field(allow_inf_nan=False)]


def check_path(value: Any) -> Any:
    """The same; ValueError for a text that the system could never open."""
    if value == "":
        raise ValueError("is empty, a path is due (an unset variable?)")
    if "\0" in str(value):
        raise ValueError("holds a null byte, which no path can")
    try:
        str(value).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ValueError("holds half a character (a lone surrogate), which no path can") from None
    return value


SomePath = Annotated[Path, BeforeValidator(check_path)]
"""A path that was given: pydantic would take empty text for the current folder."""


class Strict(BaseModel):
    """A model that knows all its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
