"""A run that goes on: from which checkpoint, with the same inputs, and the adapter as it was."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train.adapters import oft
from train.config import RunConfig
from train.data.records import hash_file
from train.data.samples import Samples
from train.errors import EXIT_CONFIG, UserError, reading, unreadable
from train.loop import checkpoint, processes
from train.loop.checkpoint import Checkpoint
from train.loop.claim import claimable, held
from train.loop.lines import say
from train.loop.manifest import Manifest
from train.loop.model import FOREIGN, checkpoint_files
from train.stop import Stopped

if TYPE_CHECKING:
    from peft import PeftModel

WITHOUT = {
    "optimizer.pt": "the optimizer starts anew",
    "scheduler.pt": "the learning rate takes the place that belongs to the step",
    "scaler.pt": "the loss scale starts anew",
    "rng_state.pt": "dropout draws other numbers",
}
LARGE_BYTES = 1 << 25
"""A file of the model above this size is compared by its size and SAMPLES pieces of it: all of it would take
minutes to read."""
SAMPLES = 64
SAMPLE_BYTES = 1 << 16
# What PEFT writes anew at each saving, or what is free to change while a run trains.
UNCOMPARED = {"inference_mode", "base_model_name_or_path", "revision", "peft_version", "auto_mapping"}
UNCOMPARED |= {"use_cayley_neumann"}


@contextlib.contextmanager
def begun(config: RunConfig) -> Iterator[tuple[Manifest, Checkpoint | None]]:
    """The output folder, held by this process: its manifest, and the checkpoint from which the run goes on.

    Raises UserError (exit 78) where the folder cannot serve. A Stopped that passes learns of the checkpoint
    that is left.
    """
    parent = config.output / "checkpoints"
    with contextlib.ExitStack() as hold:
        start, lines = processes.on_first(lambda: _claimed(config, parent, hold))
        _require_same_processes(start)
        manifest = Manifest.go_on(config, start.step) if start else Manifest.create(config)
        try:
            say(lines + (start_lines(start) if start else _anew_lines(config)))
            yield manifest, start
        except Stopped as stop:
            if config.resume == "never":
                stop.hint += " with --set resume=auto"
            stop.checkpoint = next(reversed(checkpoint.list_steps(parent).values()), None)
            raise
        finally:
            manifest.close()


def _claimed(
    config: RunConfig, parent: Path, hold: contextlib.ExitStack
) -> tuple[Checkpoint | None, list[str]]:
    hold.enter_context(held(config.output))
    claimable(config)
    return checkpoint.find(parent, config.resume == "weights-only")


def _require_same_processes(start: Checkpoint | None) -> None:
    """UserError (exit 78) where a run goes on with another number of processes: its place in the data and its
    random states are of so many.
    """
    then = start.content.get("num_processes", 1) if start else processes.size()
    if then != processes.size():
        raise UserError(
            f"resume: the run so far was of {then} processes, this start is of {processes.size()}",
            f"go on with {then}; or begin anew in another --output, with --set init_adapter="
            f"{start.folder if start else ''} to keep what was learned",
            EXIT_CONFIG,
        )


def _anew_lines(config: RunConfig) -> list[str]:
    if not (config.output / "metrics.jsonl").exists():
        return []
    return ["resume: the unfinished run left no checkpoint; it begins again at step 1"]


def start_lines(start: Checkpoint) -> list[str]:
    """Where a run goes on, and what it has to do without."""
    lines = [f"resume: goes on after step {start.step}, from {start.folder}"]
    return lines + [f"resume: {name} is missing or damaged: {WITHOUT[name]}" for name in start.missing]


def identify(config: RunConfig, parts: list[Samples]) -> dict[str, Any]:
    """What may not change while a run goes on: hashes of the data, hashes or sizes of the model's files."""
    folders = {"model": config.model, "init_adapter": config.init_adapter}
    files = {}
    for kind, folder in folders.items():
        with reading(f"{kind} {folder}"):
            files[kind] = checkpoint_files(folder) if folder else []
    files["chat_template"] = [config.chat_template] if config.chat_template else []
    return {"data": [part.summary.sha256 for part in parts], **_identities(files)}


def _identities(files: dict[str, list[Path]]) -> dict[str, dict[str, str]]:
    """Kind -> name -> identity; UserError (exit 78) lists every file that cannot be read."""
    found: dict[str, dict[str, str]] = {kind: {} for kind in files}
    faults = []
    for kind, path in ((kind, path) for kind, paths in files.items() for path in paths):
        try:
            size = path.stat().st_size
            found[kind][path.name] = hash_file(path) if size <= LARGE_BYTES else _sampled(path, size)
        except OSError as fault:
            faults.append(unreadable(path, fault, FOREIGN))
    if faults:
        raise UserError("\n".join(fault.message for fault in faults), faults[0].hint, EXIT_CONFIG)
    return found


def _sampled(path: Path, size: int) -> str:
    """The size of a file, and the hash of pieces spread evenly from its first byte to its last."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for number in range(SAMPLES):
            file.seek(max(0, size - SAMPLE_BYTES) * number // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
    return f"{size} bytes, {SAMPLES} pieces sha256:{digest.hexdigest()}"


def require_same_inputs(start: Checkpoint | None, inputs: dict[str, Any], config: RunConfig) -> None:
    """UserError (exit 78) naming every input that is not what the run so far was trained with."""
    if start is None:
        return
    then = start.content["inputs"]
    data = (*(source.path for source in config.data), *config.eval_sets().values())
    paths = zip(data, then["data"], inputs["data"], strict=True)
    lines = [f"{path}: is not the data of the run so far" for path, old, new in paths if old != new]
    template = config.chat_template.parent if config.chat_template else None
    folders = (("model", config.model), ("init_adapter", config.init_adapter), ("chat_template", template))
    for kind, folder in folders:
        before = then.get(kind, {})
        names = sorted(before.keys() | inputs[kind].keys())
        changed = [name for name in names if before.get(name) != inputs[kind].get(name)]
        lines += [f"{folder}/{name}: is not that of the run so far" for name in changed]
    if lines:
        raise UserError(
            "\n".join(lines),
            f"put it back to go on after step {start.step}, or begin anew in another --output",
            EXIT_CONFIG,
        )


def change_lines(start: Checkpoint | None, facts: dict[str, dict[str, Any]]) -> list[str]:
    """What else is not as it was, so that numbers may differ from those of one long run: versions, device."""
    lines = []
    for kind, now in facts.items() if start else ():
        then = start.content[kind] if start else {}
        lines += [
            f"note: {name} is {now.get(name)}, it was {then.get(name)}: numbers may differ from here on"
            for name in sorted(then.keys() | now.keys())
            if then.get(name) != now.get(name)
        ]
    return lines


def restore_adapter(model: PeftModel, start: Checkpoint, any_cayley: bool = False) -> None:
    """Put a checkpoint's adapter into the attached one, tensor by tensor, in place.

    `any_cayley`: the model may go back from the exact map to a checkpoint's series. UserError (exit 78)
    where it is not the adapter that the recipe attaches.
    """
    from peft import OFTConfig, set_peft_model_state_dict
    from safetensors.torch import load_file

    stored = checkpoint.checkpoint_adapter_config(start.folder)
    _require_same_adapter(stored, model, start)
    if isinstance(model.peft_config["default"], OFTConfig):
        if any_cayley:
            oft.set_cayley(model, exact=not stored["use_cayley_neumann"])
        _take_cayley(stored, model, start)
    weights = load_file(start.folder / "adapter_model.safetensors")
    result: Any = set_peft_model_state_dict(model, weights)
    adapter_missing = [name for name in result.missing_keys if _is_adapter(name, model)]
    if wrong := [*adapter_missing, *result.unexpected_keys]:
        raise UserError(
            f"{start.folder}: adapter tensors that are missing or too many: {', '.join(wrong[:5])}",
            "use the versions that the run was started with",
            EXIT_CONFIG,
        )


def _take_cayley(stored: dict[str, Any], model: PeftModel, start: Checkpoint) -> None:
    """Read the weights by the map that they are of: a series may have gone over to the exact one
    (`oft.on_drift`).
    """
    exact = not stored["use_cayley_neumann"]
    if exact and not oft.is_exact(model):
        oft.set_cayley(model, exact=True)
    elif exact != oft.is_exact(model):
        raise UserError(
            f"{start.folder}: its weights are of the Cayley-Neumann series, the recipe says exact",
            "go on with the recipe of the run so far",
            EXIT_CONFIG,
        )


def _is_adapter(name: str, model: PeftModel) -> bool:
    parameters = dict(model.named_parameters())
    return name in parameters and parameters[name].requires_grad


def _require_same_adapter(stored: dict[str, Any], model: PeftModel, start: Checkpoint) -> None:
    attached = json.loads(json.dumps(model.peft_config["default"].to_dict(), default=sorted))
    names = sorted((stored.keys() & attached.keys()) - UNCOMPARED)
    lines = [
        f"{start.folder}: the adapter has {name} {stored[name]!r}, the recipe attaches {attached[name]!r}"
        for name in names
        if _plain(stored[name]) != _plain(attached[name])
    ]
    if lines:
        raise UserError("\n".join(lines), "go on with the recipe of the run so far", EXIT_CONFIG)


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, list) else value
