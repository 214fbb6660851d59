"""A model of the hub: its id and revision as one text, resolved once to a folder on this machine.

Nothing is fetched unless the network is allowed; another process does it then, and this one stays offline.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from train.config import RunConfig
from train.errors import EXIT_CONFIG, EXIT_UNAVAILABLE, UserError
from train.loop.claim import UNFINISHED, read_manifest

ID = re.compile(r"(?P<id>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(?:@(?P<revision>[^@\s]+))?")
DEFAULT_REVISION = "main"
NEEDED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
"""What of a repository a run reads; folders in it hold other formats of the same weights."""
NOT_NEEDED = ["*/*"]
START = "import sys; sys.path[0] = sys.argv.pop(1); from train.download import main; main(*sys.argv[1:])"
"""This package, wherever it was imported from; nothing of the current folder, where users have a train.py."""
BY_RECIPE, BY_FLAG = "--set allow_network=true", "--allow-network"


@dataclass(frozen=True)
class HubModel:
    """An id and the revision that was asked for: a commit, a branch or a tag."""

    id: str
    revision: str

    def __str__(self) -> str:
        return f"{self.id}@{self.revision}"


def parse(model: Path) -> HubModel | None:
    """The hub's model that `--model` names; None where it is a folder, or can be nothing of the hub."""
    try:
        found = None if model.exists() else ID.fullmatch(str(model))
    except OSError:  # closed to this user or overlong: a place, which whoever reads it tells
        found = None
    return HubModel(found["id"], found["revision"] or DEFAULT_REVISION) if found else None


def resolve(model: Path, allow_network: bool, allow_by: str = BY_FLAG) -> Path:
    """The folder of a checkpoint: `model` itself, or the snapshot of the hub's model in the local cache.

    UserError: 78 where there is none or the hub has none, 69 where the hub was not reached.
    """
    asked = parse(model)
    return model if asked is None else _folder_of(asked, allow_network, allow_by)


def cached(model: Path) -> Path:
    """The snapshot of a hub's model where the local cache has it, else `model` itself."""
    asked = parse(model)
    return model if asked is None else _cached(asked)[0] or model


def resolved(config: RunConfig) -> RunConfig:
    """The same run on the folder of its model. A run that goes on keeps the commit that it began with."""
    asked = parse(config.model)
    if asked is None:
        return config
    known = _commit_so_far(config, asked)
    folder = _folder_of(HubModel(asked.id, known or asked.revision), config.allow_network, BY_RECIPE)
    found = config.model_copy(update={"model": folder})
    found._hub_model = asked
    return found


def facts(config: RunConfig) -> dict[str, str]:
    """What run.json says of a model of the hub: id, revision asked for, commit; empty for a folder."""
    asked = config._hub_model
    return {"id": asked.id, "revision": asked.revision, "commit": config.model.name} if asked else {}


def name_of(folder: Path) -> str:
    """What a reader calls a checkpoint: its folder's name; in the hub's cache its id and commit."""
    place = folder.absolute().parts[-3:]
    if len(place) == 3 and place[1] == "snapshots" and place[0].startswith("models--"):
        return f"{place[0].removeprefix('models--').replace('--', '/')}@{place[2]}"
    return folder.name


def _commit_so_far(config: RunConfig, asked: HubModel) -> str | None:
    written = read_manifest(config.output)
    model = written.get("model") or {}
    if written.get("status") not in UNFINISHED or config.resume == "never":
        return None
    return (
        model.get("commit")
        if (model.get("id"), model.get("revision")) == (asked.id, asked.revision)
        else None
    )


def _folder_of(asked: HubModel, allow_network: bool, allow_by: str) -> Path:
    is_commit = re.fullmatch("[0-9a-f]{40}", asked.revision) is not None
    found, reason = _cached(asked)
    if found and (is_commit or not allow_network):
        return found  # a commit never changes; a branch is asked for where that is allowed
    if allow_network:
        return _downloaded(asked, found)
    raise UserError(
        f"--model {asked}: is no folder, and as a model of the hub {reason}; the network is not used",
        "mount a folder and name it: -v /path/to/model:/model:ro and --model /model; "
        f"or allow the network: {allow_by}; or name a mirror as well: HF_ENDPOINT=https://MIRROR",
        EXIT_CONFIG,
    )


def _cached(asked: HubModel) -> tuple[Path | None, str]:
    """The snapshot in the local cache, or the reason why there is none. Connects to nothing."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        folder = snapshot_download(
            asked.id, revision=asked.revision, local_files_only=True,
            allow_patterns=NEEDED, ignore_patterns=NOT_NEEDED,
        )  # fmt: skip
    except HFValidationError as fault:
        raise UserError(f"--model {asked}: is no id: {fault}", "OWNER/NAME@REVISION", EXIT_CONFIG) from None
    except (OSError, ValueError) as fault:  # LocalEntryNotFoundError and the newer IncompleteSnapshotError
        is_partial = type(fault).__name__ == "IncompleteSnapshotError"
        return None, f"{'only in part' if is_partial else 'not'} in the cache {constants.HF_HUB_CACHE}"
    return Path(folder), ""


def _downloaded(asked: HubModel, found: Path | None) -> Path:
    """Fetch what is missing; UserError with the hub's reason, and with what the cache has."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "0"}
    environment["HF_HUB_DISABLE_TELEMETRY"] = "1"
    command = [sys.executable, "-c", START, str(Path(__file__).parents[1]), asked.id, asked.revision]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True, env=environment, check=False
    )
    lines = done.stdout.splitlines()
    outcome: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    if "folder" in outcome:
        return Path(outcome["folder"])
    problem = outcome.get("problem") or f"the download ended with exit code {done.returncode}"
    hint = outcome.get("hint", "")
    if found:
        hint = f"without the network allowed its cached commit {found.name} is taken; {hint}"
    raise UserError(f"--model {asked}: {problem}", hint, outcome.get("exit_code", EXIT_UNAVAILABLE))
