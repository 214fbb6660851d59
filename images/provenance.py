"""What an image was made from: an in-toto statement (v1) with SLSA's provenance predicate (v1)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from images.errors import EXIT_DATA, UserError
from images.lockfile import Lock
from images.spec import BackendSpec

PROVENANCE = "provenance.json"
# URIs as the specifications ask for; the project has no address of its own to put there.
BUILD_TYPE = "urn:isotune:build:1"
BUILDER = "urn:isotune:build.py"


def statement(
    name: str, digest: str, spec: BackendSpec, info: dict[str, Any], lock: Lock, others: dict[str, bytes]
) -> dict[str, Any]:
    """Return the statement on an image: the same for the same image, so without a time or a host's name.

    info: its build-info; others: name -> content of files that were made with it.
    Source: in-toto attestation framework, Statement v1; slsa.dev, provenance v1.
    """
    given = {"backend": info["backend"], "variant": info["variant"]}
    given |= {"baseImage": info["base_image"]} if info["base_overridden"] else {}
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": name, "digest": _digest(digest)}],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": given,
                "internalParameters": {
                    "lockId": info["lock_id"],
                    "specChecksum": info["spec_checksum"],
                    "sourceDateEpoch": info["source_date_epoch"],
                },
                "resolvedDependencies": _inputs(info, spec, lock),
            },
            "runDetails": {
                "builder": {"id": BUILDER, "version": {"isotune": info["isotune"]}},
                "byproducts": [
                    {"name": name, "digest": {"sha256": hashlib.sha256(content).hexdigest()}}
                    for name, content in others.items()
                ],
            },
        },
    }


def _inputs(info: dict[str, Any], spec: BackendSpec, lock: Lock) -> list[dict[str, Any]]:
    """Return source, base and lock. What is not known by digest is told with what is known of it."""
    base: dict[str, Any] = {"name": "base image", "uri": f"docker-image://{info['base_image']}"}
    if info["base_digest"].startswith("sha256:"):
        base["digest"] = _digest(info["base_digest"])
    commit, _, modified = info["commit"].partition("-")
    source: dict[str, Any] = {"name": "source", "uri": "urn:isotune:source"}
    if commit != "unknown":
        source["digest"] = {"gitCommit": commit}
    if modified:
        source["annotations"] = {"modified": True}
    name = f"images/locks/{spec.image}/requirements.txt"
    return [source, base, {"name": name, "digest": _digest(lock.requirements_sha256)}]


def _digest(text: str) -> dict[str, str]:
    kind, _, value = text.partition(":")
    return {kind: value}


def require_same(spec: BackendSpec, lock: Lock, info: dict[str, Any], image: str) -> None:
    """Raise UserError (65) with all that an image is of and this tree is not: its inputs are unknown here."""
    wanted = {"backend": spec.name, "variant": spec.variant, "lock_id": lock.lock_id}
    lines = [
        f"{image}: its {key.replace('_', ' ')} is {info[key]}, here it is {value}"
        for key, value in wanted.items()
        if info[key] != value
    ]
    if lines:
        commit = info["commit"].partition("-")[0]
        here = "name the backend that it is of"
        hint = here if commit == "unknown" else f"git checkout {commit}, from which it was built; or {here}"
        raise UserError("\n".join(lines), hint, EXIT_DATA)


def text(document: dict[str, Any]) -> str:
    """Return the bytes to sign, as text: the same every time."""
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"
