"""Who may use an output folder: a new run, or the same run going on where it was stopped."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from train.config import RunConfig
from train.data.text import is_utf8
from train.errors import EXIT_CONFIG, UserError
from train.loop import checkpoint
from train.loop.lines import say

UNFINISHED = ("running", "stopped", "failed")
FREE = {"resume", "save_steps", "save_total_limit", "device", "sample_cache", "allow_network", "tensorboard"}
FREE |= {"probe", "pinned_memory", "telemetry_seconds", "step_timeout_seconds"}
FREE |= {"auto_batch", "gradient_checkpointing"}
"""Fields that may change when a run goes on: they are no part of what it computes. `device`: the same run on
another device type, which is said. The last two let a run that ran out of memory go on."""
PLACES = ("model", "data", "eval_data", "init_adapter", "output")
"""Paths may change, what lies there may not: contents are compared when they are read."""


def claimable(config: RunConfig) -> None:
    """UserError (exit 78) where a run may not or cannot write its results here: nothing is ever
    written over.
    """
    folder = config.output
    if not is_utf8(str(folder.absolute())):
        raise UserError(
            f"--output {folder}: is not UTF-8 text, and tokenizers write under no such name",
            "name another folder",
            EXIT_CONFIG,
        )
    try:
        entries = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    except (OSError, ValueError) as fault:
        raise UserError(f"--output {str(folder)[:80]}: {fault}", "name another folder", EXIT_CONFIG) from None
    if entries:
        _continuable(config, entries)
    place = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise UserError(
            f"--output {folder}: cannot be made: {place} is no folder that uid {os.getuid()} may write",
            "name one that is writable; in a container mount one: -v /path/to/out:/out",
            EXIT_CONFIG,
        )


def _continuable(config: RunConfig, entries: list[str]) -> None:
    """UserError (exit 78) where a folder that is not empty holds anything but this run, unfinished."""
    written = read_manifest(config.output)
    is_bare = set(entries) <= {"run.json", "checkpoints"}
    if (
        written.get("status") == "failed"
        and is_bare
        and not checkpoint.list_steps(config.output / "checkpoints")
    ):
        return  # it left nothing but its word: the mended command may take its place
    if written.get("status") not in UNFINISHED or config.resume == "never":
        raise UserError(
            f"--output {config.output}: is not empty ({', '.join(entries[:5])}){_why(written, config)}",
            "name a new folder, or remove the old results: a run never writes over another",
            EXIT_CONFIG,
        )
    try:
        lines = differences(written.get("recipe") or {}, config)
    except (TypeError, KeyError, AttributeError):
        raise UserError(
            f"{config.output / 'run.json'}: what it says of the recipe is no recipe",
            "put the file back as the run left it, or name a new folder",
            EXIT_CONFIG,
        ) from None
    if lines:
        raise UserError(
            "\n".join(f"--output {config.output}: holds an unfinished run with {line}" for line in lines),
            "give the same values to go on with that run, or name a new folder",
            EXIT_CONFIG,
        )


def _why(written: dict[str, Any], config: RunConfig) -> str:
    if written.get("status") in UNFINISHED:
        return ": an unfinished run, and resume is never"
    return ": a finished run" if written.get("status") == "finished" else ""


def read_manifest(folder: Path) -> dict[str, Any]:
    """The run.json of a folder; empty where there is none that can be read."""
    try:
        content = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def differences(recipe: dict[str, Any], config: RunConfig) -> list[str]:
    """`field: VALUE there, VALUE here` for every field that makes another run than the recorded one.

    A field that the recorded recipe does not know had its default.
    """
    new = _flat(config.model_dump(mode="json"))
    old = _flat({name: field.default for name, field in RunConfig.model_fields.items()}) | _flat(recipe)
    other = "oft." if config.adapter == "lora" else "lora."
    lines = []
    for name in sorted(new.keys() | old.keys()):
        there, here = repr(old.get(name)), repr(new.get(name))
        if name.partition(".")[0] in PLACES:
            there, here = (_shape(given.get(name)) for given in (old, new))
        is_unused = name.startswith(other) and old["adapter"] == new["adapter"]
        if there != here and name not in FREE and not is_unused:
            lines.append(f"{name}: {there} there, {here} here")
    return lines


def _shape(place: Any) -> str:
    """What of a place may not change: whether there is one, and the weights of sources."""
    if isinstance(place, list):
        return f"weights {', '.join(str(source['weight']) for source in place)}"
    return "none" if place is None else "some"


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        below = value.model_dump(mode="json") if hasattr(value, "model_dump") else value
        found |= _flat(below, f"{prefix}{name}.") if isinstance(below, dict) else {prefix + name: below}
    return found


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Make the folder and hold it: two processes in one folder would destroy each other's run.

    The hold ends with the process, however it ends. UserError (exit 78) where another process has it, or it
    cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError as fault:
        raise UserError(
            f"--output {folder}: cannot be written: {fault.strerror}", "name another folder", EXIT_CONFIG
        ) from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UserError(
            f"--output {folder}: another process is running there",
            "wait for it, stop it, or name another folder",
            EXIT_CONFIG,
        ) from None
    except OSError as fault:
        say([f"note: {folder} cannot be locked ({fault.strerror}): start one run at a time there"])
    try:
        yield
    finally:
        os.close(descriptor)
