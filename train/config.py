"""The recipe's schema: one strict model for the YAML file and the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, PrivateAttr, model_validator

from train.adapters.settings import LoraSettings, OftSettings
from train.data.settings import DataFields, Sources
from train.loop.settings import LoopFields
from train.probes.settings import DeviceFields
from train.strict import MANY, SomePath, Whole, check_path


def _as_list(value: Any) -> Any:
    """Names that --set gives as one text, `q_proj,v_proj`, as the list that they are."""
    if isinstance(value, str) and value not in ("auto", "vision"):
        return [name.strip() for name in value.split(",")]
    return value


def _as_sets(value: Any) -> Any:
    """The same; ValueError with all that is wrong, where pydantic would tell both types of the union."""
    faults = []
    for name, path in value.items() if isinstance(value, dict) else [("", value)]:
        prefix = f"{name}: " if isinstance(value, dict) else ""
        if not isinstance(name, str):
            faults.append(f"the name {name!r} is no text; quote it")
        if not isinstance(path, str | Path) and value is not None:
            faults.append(f"{prefix}{path!r:.60} is no path; several sets are {{name: path}}")
            continue
        try:
            check_path(path)
        except ValueError as fault:
            faults.append(f"{prefix}{fault}")
    if faults:
        raise ValueError("; ".join(faults))
    return value


class RunConfig(DataFields, LoopFields, DeviceFields):
    """Everything that decides a run. Defaults exist for all but adapter, model, data and output."""

    adapter: Literal["lora", "oft"] = Field(description="what is trained")
    model: SomePath = Field(
        description="folder of a Qwen checkpoint, or its hub id and revision: OWNER/NAME@REVISION"
    )
    allow_network: bool = Field(False, description="a model of the hub may be downloaded")
    data: Sources = Field(
        description="training rows: a file, a folder or a glob, or a list of them, each with its weight"
    )
    output: SomePath = Field(description="folder for the results: new, empty, or that of an unfinished run")
    eval_data: Annotated[SomePath | dict[str, SomePath] | None, BeforeValidator(_as_sets)] = Field(
        None, description="rows for the evaluation loss and the generations; several sets as {name: path}"
    )
    init_adapter: SomePath | None = Field(
        None, description="folder of a trained adapter to go on with, by a new optimizer and its own settings"
    )

    lora: LoraSettings = Field(LoraSettings(), description="settings of the adapter lora")
    oft: OftSettings = Field(OftSettings(), description="settings of the adapter oft")
    target_modules: Annotated[Literal["auto", "vision"] | list[str], BeforeValidator(_as_list)] = Field(
        "auto",
        description="layers to adapt: their names, patterns of full names such as visual.blocks.*.attn.qkv; "
        "auto: every projection of attention and MLP in the language model; vision: every one in the blocks "
        "of the vision tower",
    )

    device: Literal["auto", "cuda", "npu", "cpu"] = Field(
        "auto", description="auto: what the image was built for"
    )
    precision: Literal["auto", "bf16", "fp16", "fp32"] = Field(
        "auto", description="of the frozen weights and products"
    )
    attn_implementation: Literal["auto", "sdpa", "eager"] = Field(
        "auto", description="how attention is computed; auto: the first that the device computes right"
    )

    num_generations: Whole = Field(3, ge=0, le=MANY, description="prompts answered before and after")
    max_new_tokens: Whole = Field(48, ge=1, le=10_000_000, description="longest generated answer, in tokens")

    _hub_model: Any = PrivateAttr(None)
    """The hub's model that was asked for, where `model` is its snapshot's folder."""

    def as_asked(self) -> dict[str, Any]:
        """The recipe as JSON; a model of the hub by its id."""
        values = self.model_dump(mode="json")
        return values | {"model": str(self._hub_model)} if self._hub_model else values

    @model_validator(mode="after")
    def _settings_go_together(self) -> RunConfig:
        faults = self.oft.contradictions(fresh=self.init_adapter is None) if self.adapter == "oft" else []
        faults += self.loop_faults(self.eval_sets()) + self.device_faults(self.precision)
        if faults:
            raise ValueError("\n".join(faults))
        return self

    def eval_sets(self) -> dict[str, Path]:
        """Name -> path of the evaluation rows; a plain path is the set `eval`."""
        if isinstance(self.eval_data, dict):
            return self.eval_data
        return {"eval": self.eval_data} if self.eval_data else {}


def known_fields() -> list[str]:
    """The dotted name of every field."""
    names = []
    for name, field in RunConfig.model_fields.items():
        names.append(name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            names += [f"{name}.{below}" for below in field.annotation.model_fields]
    return names
