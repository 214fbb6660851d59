"""Kinds of values in a spec, and its strict base model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

UNRESOLVED = "unresolved"
UNKNOWN = "unknown"

Name = Annotated[
    str, Field(pattern=r"^[a-z][a-z0-9-]*$", description="lower-case letters, digits and dashes")
]
Version = Annotated[str, Field(pattern=r"^\d[\w.+!-]*$", description="a version in quotes, such as '2.10.0'")]
PackageVersion = Annotated[
    str, Field(pattern=r"^\d[\w.+:~-]*$", description="a distribution's version, such as 3.12.3-0ubuntu2.1")
]
PythonVersion = Annotated[
    str, Field(pattern=r"^3\.\d{1,2}$", description="a Python version in quotes, such as '3.11'")
]
VariantName = Annotated[
    str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$", description="lower-case letters, digits, dots and dashes")
]
PythonTag = Annotated[str, Field(pattern=r"^cp3\d{1,2}$", description="a wheel's Python tag, such as cp311")]
Digest = Annotated[
    str,
    Field(
        pattern=r"^(sha256:[0-9a-f]{64}|unresolved)$", description="sha256:<64 hex digits>, or `unresolved`"
    ),
]
Sha256 = Annotated[
    str, Field(pattern=r"^([0-9a-f]{64}|unresolved)$", description="64 hex digits, or `unresolved`")
]
Url = Annotated[str, Field(pattern=r"^https?://\S+$", description="an http or https address")]
EnvName = Annotated[str, Field(pattern=r"^[A-Z_][A-Z0-9_]*$", description="a variable's name in capitals")]
AbsolutePath = Annotated[str, Field(pattern=r"^/\S*$", description="an absolute path")]
ScratchFolder = Annotated[
    str, Field(pattern=r"^[\w.-]+(?:/[\w.-]+)*$", description="a relative path without spaces")
]
Architecture = Literal["x86_64", "aarch64"]
# V: the vendor says so. P: measured, or read from a registry. T: seen at a third party. I: inferred.
Confidence = Literal["V", "P", "T", "I"]
Precision = Literal["bf16", "fp16", "fp32"]


def _compiles(text: str) -> str:
    try:
        re.compile(text, re.MULTILINE)
    except re.error as error:
        raise ValueError(f"is no regular expression: {error}") from None
    return text


Pattern = Annotated[str, AfterValidator(_compiles)]


def require_group(patterns: Iterable[str], group: str) -> None:
    """Raise ValueError where a regular expression lacks a named group."""
    lacking = [text for text in patterns if group not in re.compile(text).groupindex]
    if lacking:
        raise ValueError(f"{lacking} lack the group (?P<{group}>...)")


class Part(BaseModel):
    """A section of a spec: unknown keys and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
