"""Read what `lock` wrote: pins with hashes, and whether they still belong to the spec."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from images.errors import EXIT_CONFIG, UserError
from images.pins import Pin, parse_requirements
from images.spec import IMAGES, BackendSpec, checksum
from images.specfile import LOADER

LOCKS = IMAGES / "locks"
STACK = IMAGES / "stack" / "train.txt"
REQUIREMENTS = "requirements.txt"

LOCKED, MISSING, STALE = "locked", "missing", "stale"


@dataclass(frozen=True)
class Lock:
    """A backend's lock. `wheels` are the files of torch and its plugin, each with the source of its hash."""

    backend: str
    lock_id: str
    spec_checksum: str
    requirements_sha256: str
    base: dict[str, str]
    resolver: str
    wheels: list[dict[str, str]]
    variant: str | None = None
    pins: list[Pin] = field(default_factory=list)


def stack_lines(path: Path = STACK) -> list[str]:
    """Return a stack list without comments and blank lines: these do not make a lock stale."""
    lines = (line.partition("#")[0].strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def spec_checksum(spec: BackendSpec) -> str:
    """Return the checksum of all that the lock depends on: the spec's part and the shared stack."""
    return checksum({"spec": spec.lock_inputs(), "stack": stack_lines()})


def sha256_text(text: str) -> str:
    """Return `sha256:<hex>` of a text."""
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def lock_id(checksum_of_spec: str, requirements: str) -> str:
    """Return the short name of a lock, which is also the image's tag: 12 hex digits."""
    return hashlib.sha256(f"{checksum_of_spec}\n{sha256_text(requirements)}".encode()).hexdigest()[:12]


def read_lock(name: str, locks: Path | None = None) -> Lock | None:
    """Read the lock of an image, or None if it has none; raises UserError if its files do not agree."""
    folder = (locks or LOCKS) / name
    if not (folder / "lock.yaml").exists():
        return None
    try:
        data: dict[str, Any] = yaml.load((folder / "lock.yaml").read_text(encoding="utf-8"), LOADER)
        requirements = (folder / REQUIREMENTS).read_text(encoding="utf-8")
        data.pop("schema"), data.pop("python"), data.pop("architectures")
        lock = Lock(**data, pins=parse_requirements(requirements))
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
        raise UserError(f"images/locks/{name}: not a lock: {error}", _restore(name), EXIT_CONFIG) from error
    if sha256_text(requirements) != lock.requirements_sha256:
        message = f"images/locks/{name}/{REQUIREMENTS}: was changed by hand: its checksum is not lock.yaml's"
        raise UserError(message, _restore(name), EXIT_CONFIG)
    return lock


def lock_status(spec: BackendSpec) -> tuple[str, Lock | None]:
    """Return `locked`, `missing` or `stale`, and the lock."""
    lock = read_lock(spec.image)
    if lock is None:
        return MISSING, None
    return (LOCKED if lock.spec_checksum == spec_checksum(spec) else STALE), lock


def require_fresh(spec: BackendSpec) -> Lock:
    """Return the lock; raises UserError if there is none or the spec or the stack has changed since."""
    status, lock = lock_status(spec)
    if lock is None:
        raise UserError(
            f"images/locks/{spec.image}: there is no lock yet", _again(spec.selection), EXIT_CONFIG
        )
    if status == STALE:
        raise stale_error(spec, lock)
    return lock


def stale_error(spec: BackendSpec, lock: Lock) -> UserError:
    """Say that a lock is older than its spec or the stack."""
    message = (
        f"images/locks/{spec.image}: stale: made from {lock.spec_checksum[:19]}, "
        f"the spec and images/stack/train.txt are now {spec_checksum(spec)[:19]}"
    )
    return UserError(message, _again(spec.selection), EXIT_CONFIG)


def _restore(name: str) -> str:
    return f"git checkout images/locks/{name}, or remove that folder and lock again"


def _again(selection: str) -> str:
    return f"python build.py lock {selection}"
