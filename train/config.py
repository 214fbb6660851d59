"""The recipe: one strict schema for the YAML file and the command line."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator

from train.adapters.settings import LoraSettings, Number, OftSettings, Strict, Whole
from train.errors import EXIT_CONFIG, EXIT_USAGE, UserError


def _as_list(value: Any) -> Any:
    """Names that --set gives as one text, `q_proj,v_proj`, as the list that they are."""
    if isinstance(value, str) and value not in ("auto", "vision"):
        return [name.strip() for name in value.split(",")]
    return value


class RunConfig(Strict):
    """Everything that decides a run. Defaults exist for all but adapter, model, data and output."""

    adapter: Literal["lora", "oft"] = Field(description="what is trained")
    model: Path = Field(description="folder of a Qwen2, Qwen2.5 or Qwen3 checkpoint")
    data: Path = Field(description="training rows, .jsonl or .json")
    output: Path = Field(description="folder for the results: new, empty, or that of an unfinished run")
    eval_data: Path | None = Field(None, description="rows for the evaluation loss and the generations")
    init_adapter: Path | None = Field(
        None, description="folder of a trained adapter to go on with, by a new optimizer and its own settings"
    )

    lora: LoraSettings = LoraSettings()
    oft: OftSettings = OftSettings()
    target_modules: Annotated[Literal["auto", "vision"] | list[str], BeforeValidator(_as_list)] = Field(
        "auto",
        description="layers to adapt: their names, patterns of full names such as visual.blocks.*.attn.qkv; "
        "auto: every projection of attention and MLP in the language model; vision: every one in the blocks "
        "of the vision tower",
    )

    max_length: Whole = Field(2048, ge=8, description="longest sample, in tokens")
    overlong: Literal["error", "drop"] = Field(
        "drop", description="rows longer than max_length: stop, or leave out and say so"
    )
    thinking: Literal["auto", "on", "off"] = Field(
        "auto", description="the chat template's own switch; auto: on where the answers hold <think>"
    )

    num_train_epochs: Number = Field(3, gt=0, le=100_000)
    max_steps: Whole | None = Field(
        None, ge=1, description="stop after so many steps, whatever num_train_epochs says"
    )
    per_device_train_batch_size: Whole = Field(4, ge=1, le=65_536, description="samples of one forward")
    gradient_accumulation_steps: Whole = Field(1, ge=1, le=65_536)
    learning_rate: Number = Field(2e-4, gt=0)
    lr_scheduler_type: Literal["cosine", "linear", "constant", "constant_with_warmup"] = "cosine"
    warmup_steps: Whole = Field(0, ge=0)
    weight_decay: Number = Field(0.0, ge=0)
    max_grad_norm: Number = Field(1.0, gt=0)
    gradient_checkpointing: bool = Field(False, description="less memory, about a third more time")
    seed: Whole = Field(42, ge=0, le=2**32 - 1)
    logging_steps: Whole = Field(1, ge=1, description="a line of metrics every so many steps")
    save_steps: Whole = Field(
        200, ge=1, description="a checkpoint every so many steps, and one after the last step"
    )
    save_total_limit: Whole = Field(3, ge=1, description="so many checkpoints are kept, the newest ones")
    resume: Literal["auto", "never", "weights-only"] = Field(
        "auto",
        description="an output folder with an unfinished run: auto goes on exactly from its newest whole "
        "checkpoint; weights-only also where optimizer or random states are missing; never refuses it",
    )

    device: Literal["auto", "cuda", "npu", "cpu"] = Field(
        "auto", description="auto: what the image was built for"
    )
    precision: Literal["auto", "bf16", "fp16", "fp32"] = Field(
        "auto", description="of the frozen weights and products"
    )
    attn_implementation: Literal["auto", "sdpa", "eager"] = "auto"

    num_generations: Whole = Field(3, ge=0, description="prompts answered before and after")
    max_new_tokens: Whole = Field(48, ge=1, description="longest generated answer, in tokens")

    @model_validator(mode="after")
    def _settings_go_together(self) -> RunConfig:
        faults = self.oft.contradictions(fresh=self.init_adapter is None) if self.adapter == "oft" else []
        if faults:
            raise ValueError("\n".join(faults))
        return self


class _UniqueKeys(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys without a word; here the second one is an error."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def recipe_path(given: Path) -> Path:
    """The file of a recipe: the path as given, or the recipe of that name which ships with isotune."""
    shipped = Path(__file__).parent / "recipes" / f"{given}.yaml"
    return shipped if len(given.parts) == 1 and not given.exists() and shipped.exists() else given


def read_recipe(path: Path) -> dict[str, Any]:
    """The mapping in a YAML recipe; UserError with the line for anything else."""
    try:
        content = yaml.load(path.read_text(encoding="utf-8-sig"), _UniqueKeys)
    except OSError as fault:
        names = ", ".join(
            sorted(shipped.stem for shipped in (Path(__file__).parent / "recipes").glob("*.yaml"))
        )
        hint = f"--config takes a YAML file, or one of {names}"
        raise UserError(f"{path}: cannot be read: {fault.strerror}", hint, EXIT_CONFIG) from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8 text", "save the recipe as UTF-8", EXIT_CONFIG) from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as fault:
        mark = getattr(fault, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = getattr(fault, "problem", None) or str(fault).splitlines()[0]
        raise UserError(f"{place}: not a valid recipe: {problem}", "", EXIT_CONFIG) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(
            f"{path}: a recipe is a mapping of keys to values", "train --json-schema lists them", EXIT_CONFIG
        )
    return content


def parse_assignment(text: str) -> tuple[str, Any]:
    """`lora.r=16` as its dotted key and its value, read as YAML."""
    key, separator, value = text.partition("=")
    if not separator or not key.strip():
        raise UserError(f"--set {text}: KEY=VALUE is due", "for example --set lora.r=16", EXIT_USAGE)
    try:
        return key.strip(), yaml.safe_load(value)
    except (yaml.YAMLError, ValueError, RecursionError):
        return key.strip(), value


def build_config(recipe: Path | None, flags: dict[str, Any], assignments: list[str]) -> RunConfig:
    """The run's configuration; the command line wins over the file. Every fault is reported at once.

    `flags`: field name -> value, None where not given. `assignments`: the texts of `--set`.
    """
    recipe = recipe_path(recipe) if recipe else None
    values = read_recipe(recipe) if recipe else {}
    origins: dict[tuple[str, ...], str] = {}
    given: dict[tuple[str, ...], tuple[str, Any]] = {
        (name,): (f"--{name.replace('_', '-')}", value) for name, value in flags.items() if value is not None
    }
    for text in assignments:
        key, value = parse_assignment(text)
        path = tuple(key.split("."))
        if path in given:
            raise UserError(
                f"--set {text}: {key} is already given by {given[path][0]}", "give it once", EXIT_USAGE
            )
        given[path] = (f"--set {key}", value)
    for path, (origin, value) in given.items():
        _insert(values, path, value, origin)
        origins[path] = origin
    try:
        config = RunConfig.model_validate(values)
    except ValidationError as faults:
        lines = [_fault_line(dict(fault), origins, recipe) for fault in faults.errors()]
        raise UserError("\n".join(lines), "train --json-schema lists every field", EXIT_CONFIG) from None
    _refuse_unused(config.adapter, given)
    return config


def _refuse_unused(adapter: str, given: dict[tuple[str, ...], tuple[str, Any]]) -> None:
    """A recipe may hold the settings of both adapters; on the command line those of the other one are
    a mistake.
    """
    unused = [
        origin for path, (origin, _) in given.items() if path[0] in ("lora", "oft") and path[0] != adapter
    ]
    if unused:
        lines = [f"{origin}: has no effect, the adapter is {adapter}" for origin in unused]
        raise UserError("\n".join(lines), "name the adapter's own settings", EXIT_CONFIG)


def _insert(values: dict[str, Any], path: tuple[str, ...], value: Any, origin: str) -> None:
    for name in path[:-1]:
        below = values[name] = values.get(name) or {}
        if not isinstance(below, dict):
            raise UserError(f"{origin}: {name} has no fields of its own", "", EXIT_CONFIG)
        values = below
    values[path[-1]] = value


def _fault_line(fault: dict[str, Any], origins: dict[tuple[str, ...], str], recipe: Path | None) -> str:
    path = tuple(str(part) for part in fault["loc"])
    origin = next((name for key, name in origins.items() if path[: len(key)] == key), None)
    place = origin or (
        f"{recipe}: {'.'.join(path)}" if recipe and fault["type"] != "missing" else ".".join(path)
    )
    if fault["type"] == "extra_forbidden":
        return f"{place}: no such field{_suggest(path)}"
    if fault["type"] == "missing":
        return f"{place}: not given; --{path[-1].replace('_', '-')} or the recipe must say it"
    message = fault["msg"].removeprefix("Value error, ")
    if isinstance(fault["input"], dict):  # fields that contradict each other: the message has their values
        return f"{place}: {message}" if place else message
    return f"{place}: {message}, not {fault['input']!r}"


def _suggest(path: tuple[str, ...]) -> str:
    fields = known_fields()
    wanted = ".".join(path)
    near = difflib.get_close_matches(wanted, fields, n=1, cutoff=0.6)
    by_last = [field for field in fields if field.split(".")[-1] == path[-1]]
    match = (by_last or near or [""])[0]
    return f"; did you mean {match}?" if match else ""


def known_fields() -> list[str]:
    """The dotted name of every field."""
    names = []
    for name, field in RunConfig.model_fields.items():
        names.append(name)
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            names += [f"{name}.{below}" for below in field.annotation.model_fields]
    return names
