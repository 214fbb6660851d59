"""isotune.json beside adapter_config.json: of which base, by which versions, read in which way, doing what.

The same weights mean another rotation in another version or form (cases of PEFT 0.14 and 0.18): only a
fingerprint shows it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train import __version__
from train.adapters.fingerprint import Fingerprint, Probe, difference, make_probe, percent, take, tolerance
from train.data.records import hash_file
from train.device import versions
from train.errors import EXIT_CONFIG, UserError
from train.hub import name_of

if TYPE_CHECKING:
    from peft import PeftModel

    from train.adapters.saved import AdapterConfig

MANIFEST = "isotune.json"
SCHEMA = 1
PARAMETRISATION = {
    "lora": ("r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "target_modules"),
    "oft": (
        "r", "oft_block_size", "use_cayley_neumann", "num_cayley_neumann_terms", "coft", "eps", "block_share",
        "target_modules",
    ),
}  # fmt: skip
"""Fields of adapter_config.json that decide what the weights mean."""
EXACT_ENOUGH = 1e-3
"""A tolerance up to which equal logits vouch for an adapter whose files or settings have changed."""
TYPES = {"schema": int, "kind": str, "parametrisation": dict, "weights": str, "base": dict, "versions": dict}
NAMED_VERSIONS = ("torch", "transformers", "peft")


@dataclass(frozen=True)
class AdapterManifest:
    """The content of isotune.json.

    `base`: folder, model_type, and files: name -> sha256. `thinking`: the chat template's switch when the
    samples were rendered; prompts at serving time need the same.
    """

    kind: str
    parametrisation: dict[str, Any]
    weights: str
    base: dict[str, Any]
    fingerprint: Fingerprint = field(repr=False)
    versions: dict[str, str | None]
    thinking: str = "auto"
    isotune: str = __version__
    schema: int = SCHEMA


def parametrisation(kind: str, values: dict[str, Any]) -> dict[str, Any]:
    """What of adapter_config.json decides the weights' meaning; lists in order."""
    return {
        name: sorted(values[name]) if isinstance(values.get(name), list) else values.get(name)
        for name in PARAMETRISATION[kind]
    }


def present_versions() -> dict[str, str | None]:
    """The installed versions that decide how an adapter is read."""
    found = versions()
    return {name: found[name] for name in NAMED_VERSIONS}


def base_files(hashes: dict[str, str]) -> dict[str, str]:
    """Of a folder's hashes, name -> sha256, those that decide what the base computes: config and weights."""
    return {
        name: digest
        for name, digest in hashes.items()
        if name == "config.json" or Path(name).suffix in (".safetensors", ".bin")
    }


def write_manifest(
    saved: AdapterConfig, model: PeftModel, base: Path, hashes: dict[str, str], thinking: str = "auto"
) -> None:
    """Write isotune.json for a model and its adapter, just saved.

    `hashes`: name -> sha256 of the base's files. UserError (exit 70) where the logits are not finite.
    """
    inside: Any = model.get_base_model()
    rows = inside.get_output_embeddings().weight.shape[0]
    manifest = AdapterManifest(
        kind=saved.kind,
        parametrisation=parametrisation(saved.kind, saved.values),
        weights=hash_file(saved.weights),
        base={"folder": name_of(base), "model_type": inside.config.model_type, "files": base_files(hashes)},
        fingerprint=take(model, make_probe(rows)),
        versions=present_versions(),
        thinking=thinking,
    )
    # One line for each part: the hundreds of figures in a column of their own would hide all others.
    content = {"schema": SCHEMA, "isotune": __version__, **asdict(manifest)}
    parts = [f"  {json.dumps(name)}: {json.dumps(value)}" for name, value in content.items()]
    (saved.folder / MANIFEST).write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def read_manifest(folder: Path) -> AdapterManifest | None:
    """The manifest of an adapter's folder; None where there is none. UserError (exit 78) for a broken one."""
    path = folder / MANIFEST
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if wrong := [name for name, kind in TYPES.items() if not isinstance(content[name], kind)]:
            raise TypeError(f"{', '.join(wrong)}: of another type than a run writes")
        if not isinstance(content["base"].get("files"), dict) or "folder" not in content["base"]:
            raise TypeError("base: names no folder, or no files")
        if content["schema"] != SCHEMA:
            raise ValueError(f"schema {content['schema']}, this train reads schema {SCHEMA}")
        figures = content.pop("fingerprint")
        probe = Probe(**figures.pop("probe"))
        manifest = AdapterManifest(fingerprint=Fingerprint(probe=probe, **figures), **content)
        shapes = {len(manifest.fingerprint.base), len(manifest.fingerprint.adapted)}
        if shapes != {len(probe.input_ids) * len(probe.positions)}:
            raise ValueError("the fingerprint's figures do not fit its places")
        numbers = [*manifest.fingerprint.base, *manifest.fingerprint.adapted]
        if not all(isinstance(number, (int, float)) for row in numbers for number in row):
            raise ValueError("the fingerprint's figures are no numbers")
        if not all(0 <= place < len(row) for row in probe.input_ids for place in probe.positions):
            raise ValueError("the fingerprint's places are not in its rows")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as fault:
        hint = "copy the adapter again"
        raise UserError(f"{path}: is not an adapter's manifest: {fault!r}", hint, EXIT_CONFIG) from None
    return manifest


def compare(model: PeftModel, saved: AdapterConfig) -> list[str]:
    """Recompute the fingerprint of a loaded adapter; notes on what it cannot tell.

    UserError (exit 78) with the reason, told apart: another base, changed files, or another reading of them.
    """
    recorded = saved.manifest
    if recorded is None:
        return [
            f"{saved.folder} has no {MANIFEST}: nothing tells its base and reading, so nothing was compared"
        ]
    then = recorded.fingerprint
    inside: Any = model.get_base_model()
    rows = inside.get_output_embeddings().weight.shape[0]
    if then.probe.largest_id >= rows:
        raise _another_base(inside, saved, recorded, f"its vocabulary has {rows} rows only")
    now = take(model, then.probe)
    allowed = tolerance(then.dtype, now.dtype)
    off = difference(now.base, then.base, then.base)
    if not off <= allowed:
        figures = f"its own logits differ by {percent(off)} of their spread, {percent(allowed)} is allowed"
        raise _another_base(inside, saved, recorded, figures)
    moved = difference(now.adapted, then.adapted, then.base)
    changes = _changes(saved, recorded)
    if not moved <= allowed:
        figures = f"logits with it differ by {percent(moved)} of their spread, {percent(allowed)} is allowed"
        raise _changed(saved, figures, changes, then, now)
    effect = difference(then.adapted, then.base, then.base)
    if effect > allowed and not (changes and allowed > EXACT_ENOUGH):
        return [f"{change}; the logits are as trained" for change in changes]
    if effect > allowed:
        figures = f"logits in {now.dtype} cannot show whether that matters: load it with --precision fp32"
        raise _changed(saved, figures, changes, then, now)
    limit = (
        f"its effect on the logits, {percent(effect)} of their spread, is below rounding, {percent(allowed)}"
    )
    if changes or saved.doubt:
        raise _changed(saved, limit, [*changes, *([saved.doubt] if saved.doubt else [])], then, now)
    return [f"{saved.folder}: {limit}: the fingerprint cannot tell whether it is read as trained"]


def _another_base(inside: Any, saved: AdapterConfig, recorded: AdapterManifest, figures: str) -> UserError:
    folder = Path(inside.name_or_path)
    differing = []
    for name, digest in recorded.base["files"].items():
        here = hash_file(folder / name) if (folder / name).is_file() else "missing"
        if here != digest:
            differing.append(f"{name} was {digest[:19]}, is {here[:19]}")
    then = recorded.fingerprint
    reason = "; ".join(differing) or (
        f"its files are the same, so it is read in another way: trained with {_named(recorded.versions)} in "
        f"{then.dtype} on {then.device}, here {_named(present_versions())}"
    )
    return UserError(
        f"--model {folder}: is not the base model that {saved.folder} was trained on: {figures}\n{reason}",
        f"give the base that it was trained on, a folder that was named {recorded.base['folder']}",
        EXIT_CONFIG,
    )


def _changes(saved: AdapterConfig, recorded: AdapterManifest) -> list[str]:
    """What of the adapter's files is not as recorded."""
    changes = []
    digest = hash_file(saved.weights)
    if digest != recorded.weights:
        changes.append(f"{saved.weights.name} was {recorded.weights[:19]}, is {digest[:19]}")
    here = parametrisation(saved.kind, saved.values)
    if saved.kind != recorded.kind:
        changes.append(f"peft_type was {recorded.kind}, is {saved.kind}")
        return changes
    return changes + [
        f"{name} was {recorded.parametrisation.get(name)!r}, is {value!r}"
        for name, value in here.items()
        if value != recorded.parametrisation.get(name)
    ]


def _changed(
    saved: AdapterConfig, figures: str, changes: list[str], then: Fingerprint, now: Fingerprint
) -> UserError:
    assert saved.manifest is not None
    trained = _named(saved.manifest.versions)
    what = "its files were changed" if changes else "it is read in another way"
    lines = [f"{saved.folder}: is not what was trained: {what}: {figures}", *changes]
    if not changes:
        lines.append(
            f"trained with {trained} in {then.dtype} on {then.device}, "
            f"here {_named(present_versions())} in {now.dtype} on {now.device}"
        )
    return UserError("\n".join(lines), f"copy the adapter again, use {trained}, or retrain it", EXIT_CONFIG)


def _named(found: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {version or 'missing'}" for name, version in found.items())
