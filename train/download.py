"""Fetch a model of the hub into the local cache; run in a process of its own, with the network allowed.

Prints one line of JSON: the folder, or the problem, a hint and an exit code.
"""

from __future__ import annotations

import json
from typing import Any

from train.errors import EXIT_CONFIG, EXIT_UNAVAILABLE
from train.hub import NEEDED, NOT_NEEDED


def fetch(model_id: str, revision: str) -> dict[str, Any]:
    """Ask the hub for the revision, and fetch what of it is not in the cache."""
    from huggingface_hub import HfApi, constants, snapshot_download

    try:
        # Asked for first: a hub that is not reached would else be taken over by whatever the cache has.
        HfApi().model_info(model_id, revision=revision)
        folder = snapshot_download(
            model_id, revision=revision, allow_patterns=NEEDED, ignore_patterns=NOT_NEEDED
        )
    except Exception as fault:  # the library's own, its HTTP library's, and those of the disk
        return _outcome(fault, constants.ENDPOINT, constants.HF_HUB_CACHE)
    return {"folder": folder}


def main(model_id: str, revision: str) -> None:
    print(json.dumps(fetch(model_id, revision)))


def _outcome(fault: Exception, endpoint: str, cache: str) -> dict[str, Any]:
    from huggingface_hub import errors

    token = "a token that may read it: HF_TOKEN, or a file that HF_TOKEN_PATH names"
    if isinstance(fault, errors.GatedRepoError):
        return _problem("is gated: its licence has to be accepted on the hub's page", token)
    if isinstance(fault, errors.RevisionNotFoundError):
        return _problem(f"{endpoint} has no such revision", "name a commit, a branch or a tag that it has")
    if isinstance(fault, errors.RepositoryNotFoundError):
        return _problem(f"{endpoint} has no such model, or it is private", f"correct the id, or give {token}")
    if isinstance(fault, errors.HfHubHTTPError):
        return _problem(
            f"{endpoint} answers: {_first_line(fault)}", "try again, or name a mirror: HF_ENDPOINT", True
        )
    if isinstance(fault, OSError) and fault.filename and fault.errno:
        return _problem(f"{fault.filename}: {fault.strerror}", f"HF_HOME names another cache than {cache}")
    return _problem(
        f"{endpoint} was not reached: {_first_line(fault)}",
        "mount a folder and name it with --model, or name a mirror that is reached: HF_ENDPOINT=https://MIRROR",
        True,
    )


def _problem(text: str, hint: str, is_unavailable: bool = False) -> dict[str, Any]:
    return {"problem": text, "hint": hint, "exit_code": EXIT_UNAVAILABLE if is_unavailable else EXIT_CONFIG}


def _first_line(fault: Exception) -> str:
    lines = [line for line in str(fault).splitlines() if line.strip()]
    return lines[0] if lines else type(fault).__name__
