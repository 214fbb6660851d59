"""What tests of trained adapters share: adapters whose weights do something, saved as a run saves them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_families import FAMILIES, FIELDS, VERSION, is_claimed, tiny_model, write_checkpoint

from train.loop.model import missing_operator


@pytest.fixture(scope="session")
def adapter_of(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Folder of an adapter of `kind` on the tiny checkpoint, with isotune.json; tests must not write into it.

    `std`: of its random weights. `fields`: of the recipe.
    """
    import torch

    from train.adapters import attach
    from train.adapters.manifest import write_manifest
    from train.adapters.saved import read_adapter_config
    from train.config import RunConfig
    from train.loop.model import hash_folder, load_model

    made: dict[str, Path] = {}

    def make(kind: str, std: float = 0.05, model: Path = tiny, **fields: Any) -> Path:
        key = f"{kind} {std} {model} {fields}"
        if key not in made:
            folder = tmp_path_factory.mktemp("adapter") / kind
            config = RunConfig.model_validate(
                {"adapter": kind, "model": model, "data": "none", "output": "none", **fields}
            )
            base = load_model(model, torch.float32, "sdpa")
            adapted = attach.attach(base, config, attach.find_targets(base, config))
            generator = torch.Generator().manual_seed(0)
            with torch.no_grad():
                for parameter in attach.trainable(adapted).values():
                    parameter.normal_(std=std, generator=generator)
            adapted.save_pretrained(str(folder))
            write_manifest(read_adapter_config(folder), adapted, model, hash_folder(model))
            made[key] = folder
        return made[key]

    return make


@pytest.fixture
def few_rows(tmp_path: Path) -> Path:
    """The four shortest of the first rows of the shipped samples."""
    from train.checks.tiny import samples_file

    lines = sorted(samples_file().read_text(encoding="utf-8").split("\n")[:40], key=len)
    path = tmp_path / "few.jsonl"
    path.write_text("\n".join(lines[:4]) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def copy_of(adapter_of: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """A copy of such an adapter that a test may edit; `edits` go into adapter_config.json, None removes."""
    import json
    import shutil

    def copy(kind: str, edits: dict[str, Any] | None = None, manifest: bool = True, **made: Any) -> Path:
        folder = Path(shutil.copytree(adapter_of(kind, **made), tmp_path / f"copy-{kind}"))
        path = folder / "adapter_config.json"
        values = json.loads(path.read_text(encoding="utf-8")) | (edits or {})
        kept = {name: value for name, value in values.items() if value is not None}
        path.write_text(json.dumps(kept), encoding="utf-8")
        if not manifest:
            (folder / "isotune.json").unlink()
        return folder

    return copy


@pytest.fixture(scope="session")
def model_of() -> Callable[[str], Any]:
    """A copy of the tiny random model of a type; skips where there is none here or it cannot run."""
    made: dict[str, Any] = {}

    def copied(model_type: str) -> Any:
        if lacked := missing_operator(FIELDS[model_type].get("layer_types", ())):
            pytest.skip(f"{model_type}: {lacked}")
        if model_type not in made:
            try:
                made[model_type] = tiny_model(model_type)
            except ValueError:
                assert not is_claimed(FAMILIES[model_type].tested_with)
                pytest.skip(f"transformers {VERSION} has no {model_type}")
        return copy.deepcopy(made[model_type])

    return copied


@pytest.fixture(scope="session")
def checkpoint_of(
    tiny: Path, model_of: Callable[[str], Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """The same as a folder; tests must not write into it."""
    made: dict[str, Path] = {}

    def written(model_type: str) -> Path:
        if model_type not in made:
            folder = tmp_path_factory.mktemp(model_type) / "model"
            made[model_type] = write_checkpoint(tiny, folder, model_of(model_type))
        return made[model_type]

    return written


@pytest.fixture
def without_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The curve takes as long as four steps."""
    from train.loop import run as module

    monkeypatch.setattr(module, "draw_loss", lambda *_: None)
