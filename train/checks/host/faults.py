"""A vendor's error codes and messages, with what they mean: a table of build-info.json."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from train.checks.host.finding import FAILED, Seen


@dataclass(frozen=True)
class Known:
    """words: as they stood in the text. exit_code: 69 where the device cannot be used, 70 else."""

    words: str
    cause: str
    cure: str
    exit_code: int


def explain(errors: Iterable[dict[str, Any]], text: str) -> list[Known]:
    """Every known error in a text, in the order of the table."""
    found = []
    for error in errors:
        if match := re.search(error["pattern"], text):
            found.append(Known(match[0], error["cause"], error["cure"], error["exit_code"]))
    return found


def look_at_words(errors: Iterable[dict[str, Any]], where: str, text: str) -> list[Seen]:
    """The known errors in what a tool said."""
    found = explain(errors, text)
    return [Seen("tool", where, FAILED, f"{known.words}: {known.cause}", known.cure) for known in found]
