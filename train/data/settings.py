"""What a recipe says of rows and samples."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from train.strict import Strict, Whole


class DataFields(Strict):
    """Fields of a recipe that decide which samples a run has."""

    max_length: Whole = Field(2048, ge=8, description="longest sample, in tokens")
    overlong: Literal["error", "drop"] = Field(
        "drop", description="rows longer than max_length: stop, or leave out and say so"
    )
    thinking: Literal["auto", "on", "off"] = Field(
        "auto", description="the chat template's own switch; auto: on where the answers hold <think>"
    )
