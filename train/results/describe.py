"""What an adapter's or a run's folder holds, in lines: `train info`. Reads JSON only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from train import families, hub
from train.adapters.manifest import parametrisation
from train.adapters.saved import CONFIG, AdapterConfig, read_adapter_config, read_json
from train.errors import EXIT_CONFIG, UserError, reading
from train.loop.model import read_model_config


def describe(folder: Path) -> dict[str, Any]:
    """The facts of a folder, by part: `run`, `adapter`, `base`, `versions`, `results`, as far as it has them;
    `model` for a checkpoint.

    UserError (exit 78) where it is none of them, or its files are broken.
    """
    with reading(folder, "give a run's --output folder, an adapter's, or a checkpoint's"):
        return _describe(folder)


def _describe(folder: Path) -> dict[str, Any]:
    if (folder / "run.json").is_file():
        facts = _run(read_json(folder / "run.json"), folder / "run.json")
        adapter = folder / "adapter"
        return facts | (_adapter(read_adapter_config(adapter)) if (adapter / CONFIG).exists() else {})
    if (folder / "config.json").is_file() and not (folder / CONFIG).exists():
        return {"model": _model(folder)}
    if folder.is_dir() and not (folder / CONFIG).exists():
        raise UserError(
            f"{folder}: has neither run.json nor {CONFIG} nor config.json",
            "give a run's --output folder, an adapter's, or a checkpoint's",
            EXIT_CONFIG,
        )
    return _adapter(read_adapter_config(folder))


def _model(folder: Path) -> dict[str, Any]:
    """What a checkpoint is, and what is known of its family."""
    content = read_model_config(folder)
    family = families.family_of(content["model_type"])
    facts = {"folder": str(folder), "name": hub.name_of(folder), "model_type": content["model_type"]}
    if family is None:
        return facts | {"family": "not one that isotune tests", "packing": False}
    return facts | {
        "family": family.name,
        "auto adapts": family.parts,
        "tested with transformers": list(family.tested_with),
        "packing": families.may_pack(content),
    }


def _run(content: dict[str, Any], path: Path) -> dict[str, Any]:
    parts = {name: content.get(name) or {} for name in ("recipe", "results", "versions")}
    if wrong := [name for name, part in parts.items() if not isinstance(part, dict)]:
        raise UserError(
            "\n".join(f"{path}: {name}: an object is due, not {str(parts[name])[:40]}" for name in wrong),
            "put the file back as the run left it",
            EXIT_CONFIG,
        )
    recipe = parts["recipe"]
    run: dict[str, Any] = {
        name: content[name] for name in ("status", "reason", "started", "ended") if name in content
    }
    run |= {name: recipe[name] for name in ("adapter", "model", "data", "seed") if name in recipe}
    results = {
        name: value
        for name, value in parts["results"].items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    return {"run": run, "versions": parts["versions"], "results": results}


def _adapter(saved: AdapterConfig) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "adapter": {
            "folder": str(saved.folder),
            "kind": saved.kind,
            **parametrisation(saved.kind, saved.values),
            "bytes": saved.weights.stat().st_size,
        }
    }
    if saved.manifest is None:
        facts["base"] = {"folder": saved.values.get("base_model_name_or_path") or "unknown"}
        facts["versions"] = {"peft": saved.values.get("peft_version") or "unknown"}
        return facts
    facts["base"] = {key: value for key, value in saved.manifest.base.items() if key != "files"}
    facts["base"] |= saved.manifest.base["files"]
    facts["versions"] = {"isotune": saved.manifest.isotune, **saved.manifest.versions}
    return facts


def lines(facts: dict[str, Any]) -> list[str]:
    """The facts for a reader: a part's name, then its fields."""
    found = []
    for part, fields in facts.items():
        found.append(part)
        found += [f"  {name}: {_short(value)}" for name, value in fields.items()]
    return found


def _short(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else f"{value}"
