"""What a run would learn from its files, found without a model's weights: `train check-data`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train.data.lengths import beyond_positions, histogram, histogram_lines, quantiles
from train.data.mixture import mix
from train.data.packing import check_lengths
from train.data.samples import Policies, Samples, account, refuse
from train.data.shown import marked, segments
from train.data.template import ChatTemplate
from train.errors import UserError

if TYPE_CHECKING:
    from train.config import RunConfig


@dataclass
class FileCheck:
    """What was found in one file.

    error, hint: why a run would refuse it, in short; empty where it would not. loaded: None where the file
    could not be read.
    """

    path: Path
    loaded: Samples | None
    error: str = ""
    hint: str = ""


def read_config(recipe: Path | None, flags: dict[str, Any], assignments: list[str]) -> RunConfig:
    """The recipe whose data is checked; what only a run needs may be missing. UserError (exit 64, 78)."""
    from train.recipe import build_config, parse_assignment, read_recipe, recipe_path

    given = set(read_recipe(recipe_path(recipe))) if recipe else set()
    given |= {parse_assignment(text)[0] for text in assignments}
    missing = {"adapter": "lora", "output": "unused"}
    return build_config(
        recipe, flags | {k: value for k, value in missing.items() if k not in given}, assignments
    )


def check(config: RunConfig) -> tuple[ChatTemplate, list[FileCheck]]:
    """Look at every row of the recipe's files. UserError (exit 78) for tokenizer, template or settings."""
    from train import hub
    from train.loop.model import (
        find_stop_tokens,
        load_tokenizer,
        quiet_libraries,
        read_model_config,
    )

    config = hub.resolved(config)
    read_model_config(config.model)
    quiet_libraries()
    template = ChatTemplate(
        load_tokenizer(config.model), config.thinking, config.train_on, config.chat_template
    )
    find_stop_tokens(template, config.model)
    policies = Policies(config.max_length, config.overlong, config.bad_rows, config.max_bad_rows)
    paths = [*(source.path for source in config.data), *config.eval_sets().values()]
    return template, [_check_file(path, template, policies) for path in paths]


def together(config: RunConfig, files: list[FileCheck]) -> tuple[list[str], list[UserError]]:
    """What the files come to as the data of one run: the mixture in words, and what a run would refuse."""
    parts = [file.loaded for file in files if file.loaded and not file.error]
    if len(parts) < len(files):
        return [], []
    notes: list[str] = []
    faults = []
    from train import families
    from train.loop.model import read_model_config

    try:
        notes = mix(config.data, parts[: len(config.data)], config.seed).notes
    except UserError as fault:
        faults.append(fault)
    try:
        check_lengths(parts, config.per_device_tokens)
    except UserError as fault:
        faults.append(fault)
    notes = notes + beyond_positions(parts, families.of_text(read_model_config(config.model)))
    return notes, faults


def _check_file(path: Path, template: ChatTemplate, policies: Policies) -> FileCheck:
    try:
        loaded = account(path, template, policies)
    except OSError as fault:
        return FileCheck(
            path, None, f"{path}: cannot be read: {fault.strerror}", "name a file that this user may read"
        )
    except UserError as fault:
        return FileCheck(path, None, fault.message, fault.hint)
    try:
        refuse(loaded, policies)
    except UserError as fault:
        return FileCheck(path, loaded, _short(fault, loaded, policies), fault.hint)
    return FileCheck(path, loaded)


def _short(fault: UserError, loaded: Samples, policies: Policies) -> str:
    """The fault in one line: the rows themselves are in the report."""
    lines = fault.message.splitlines()
    summary = loaded.summary
    if len(lines) == 1 or "max_bad_rows" in lines[-1]:
        return lines[-1]
    if summary.num_bad:
        return f"{summary.path}: {summary.num_bad} of {summary.num_rows} rows are bad"
    return f"{summary.path}: {len(loaded.too_long)} samples are longer than max_length {policies.max_length}"


def as_dict(checked: FileCheck, template: ChatTemplate, num_samples: int) -> dict[str, Any]:
    """The whole account as JSON takes it: every bad row, every length in its bin."""
    verdict = {"ok": not checked.error, "error": checked.error, "hint": checked.hint}
    loaded = checked.loaded
    if loaded is None:
        return {"path": str(checked.path), **verdict}
    return {
        **verdict,
        **asdict(loaded.summary),
        "bad_rows": [{"place": fault.place, "reason": fault.reason} for fault in loaded.faults],
        "too_long": [{"place": place, "tokens": tokens} for place, tokens in loaded.too_long],
        "cut": loaded.cut,
        "smallest_max_length": loaded.summary.longest_tokens,
        "lengths": quantiles(loaded.lengths),
        "histogram": [
            {"from": low, "to": high, "samples": count}
            for low, high, count in histogram(loaded.lengths, loaded.summary.max_length)
        ],
        "samples": [
            {"place": sample.place, "text": marked(segments(template.tokenizer, sample))}
            for sample in loaded.samples[:num_samples]
        ],
    }


def report_lines(checked: FileCheck) -> list[str]:
    """The account for a reader."""
    loaded = checked.loaded
    if loaded is None:
        return [checked.error]
    summary = loaded.summary
    lines = summary.lines()
    if not loaded.lengths:
        return lines
    mean = summary.num_target_tokens / max(1, summary.num_samples)
    middle = quantiles(loaded.lengths)
    lines.append(
        f"{summary.num_samples} samples, {mean:.1f} learned tokens each on average; lengths: "
        + ", ".join(f"{name} {value}" for name, value in middle.items())
    )
    lines.append(
        f"max_length {summary.longest_tokens} keeps everything whole, nothing less does; the longest sample "
        f"is at {summary.longest_place}"
    )
    lines += histogram_lines(loaded.lengths, summary.max_length)
    lines += [f"{later} equals {first}" for later, first in summary.duplicates]
    return lines
