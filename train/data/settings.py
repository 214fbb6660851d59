"""What a recipe says of rows and samples."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

from train.strict import MANY, Number, SomePath, Strict, Whole


class WeightedPath(Strict):
    """One source of training rows."""

    path: SomePath = Field(description="a file, a folder or a glob")
    weight: Number = Field(
        1.0, gt=0, le=1000, description="an epoch has so many times its rows: repeats and a drawn fraction"
    )


def _as_sources(value: Any) -> Any:
    """A path or a list of paths as the list of sources that it is."""
    entries = value if isinstance(value, list) else [value]
    return [{"path": entry} if isinstance(entry, str | Path) else entry for entry in entries]


def _as_written(sources: list[WeightedPath]) -> Any:
    """A plain path again where there is no more to say."""
    if len(sources) == 1 and sources[0].weight == 1:
        return str(sources[0].path)
    return [{"path": str(source.path), "weight": source.weight} for source in sources]


Sources = Annotated[
    list[WeightedPath],
    Field(min_length=1),
    BeforeValidator(_as_sources, json_schema_input_type=Path | list[Path | WeightedPath]),
    PlainSerializer(_as_written, return_type=Any),
]


def _switch(value: Any) -> Any:
    """YAML reads on and off as booleans."""
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else value


class DataFields(Strict):
    """Fields of a recipe that decide which samples a run has."""

    max_length: Whole = Field(2048, ge=8, le=MANY, description="longest sample, in tokens")
    overlong: Literal["error", "drop", "cut-prompt"] = Field(
        "drop",
        description="samples longer than max_length: stop; leave out and say so; or cut the longest texts of "
        "users and tools at their start, never an answer, and say so",
    )
    sample_cache: Annotated[Literal["auto", "off"], BeforeValidator(_switch)] = Field(
        "auto",
        description="tokenised samples of large sources are kept by content in $ISOTUNE_CACHE or the user's "
        "cache folder; off: neither read nor written",
    )
    bad_rows: Literal["error", "skip"] = Field(
        "error",
        description="rows that cannot be learned from: stop, or leave out; both list them",
    )
    max_bad_rows: Number = Field(
        0.01, ge=0, le=1, description="bad_rows skip: the largest share of bad rows that is no error"
    )
    train_on: Literal["all", "last"] = Field(
        "all",
        description="which assistant turns of a conversation are learned; all is also the default of "
        "LLaMA-Factory, ms-swift and axolotl",
    )
    thinking: Annotated[Literal["auto", "on", "off"], BeforeValidator(_switch)] = Field(
        "auto", description="the chat template's own switch; auto: on where the answers hold <think>"
    )
    chat_template: SomePath | None = Field(
        None, description="a jinja file in the place of the checkpoint's own chat template"
    )
    untrained_stop_token: Literal["error", "allow"] = Field(
        "error",
        description="a checkpoint that never learned the token which ends an answer (a base model's "
        "<|im_end|>): stop, or go on although answers may not end",
    )
