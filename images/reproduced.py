"""What `build.py reproduce --record` keeps: builds of one commit gave one digest, and on which engine."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from images.context import revision
from images.errors import EXIT_CONFIG, UserError
from images.evidence import EVIDENCE
from images.lockfile import Lock, require_fresh
from images.spec import BackendSpec
from images.spec_types import UNKNOWN, Architecture, Part

if TYPE_CHECKING:
    from images.engine import Engine

REPRODUCED = EVIDENCE / "reproduced"


class Reproduced(Part):
    """One digest that came out twice."""

    image: str
    lock_id: str
    architecture: Architecture
    commit: str
    date: str = Field(pattern=r"^\d{4}-\d\d-\d\d$")
    digest: str
    how: Literal["two cold builds", "a cold build against a given image"]
    base: Literal["named", "stand-in"]
    engine: str = Field(description="version and system of the engine, and the id that it gave itself")


def outcome(
    spec: BackendSpec, engine: Engine, digest: str, is_given: bool, base_image: str | None
) -> Reproduced:
    """Return what came out on this engine; is_given: the first image was not built by this command."""
    return Reproduced(
        image=spec.image,
        lock_id=require_fresh(spec).lock_id,
        architecture=TypeAdapter(Architecture).validate_python(engine.architecture),
        commit=revision().commit,
        date=datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        digest=digest,
        how="a cold build against a given image" if is_given else "two cold builds",
        base="stand-in" if base_image else "named",
        engine=_engine(engine.info),
    )


def record(found: Reproduced, folder: Path = REPRODUCED) -> Path:
    """Write an outcome; a later one of the same kind, image and architecture replaces it."""
    kind = "two" if found.how == "two cold builds" else "given"
    path = folder / f"{found.image}-{found.architecture}-{kind}.json"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(found.model_dump_json(indent=1) + "\n", encoding="utf-8")
    return path


def _engine(info: dict[str, Any]) -> str:
    version, system, own = (info.get(key, UNKNOWN) for key in ("ServerVersion", "OperatingSystem", "ID"))
    return f"Docker Engine {version} on {system}, id {own}"


def is_reproduced(image: str, lock: Lock | None, folder: Path = REPRODUCED) -> bool:
    """Did today's lock give one digest twice? Raises UserError if a record is broken."""
    found = False
    for path in sorted(folder.glob(f"{image}-*.json")):
        try:
            item = TypeAdapter(Reproduced).validate_json(path.read_bytes())
        except (ValidationError, OSError) as error:
            message = f"{path}: not a record of `reproduce`: {str(error).splitlines()[0]}"
            raise UserError(
                message, "git checkout images/evidence, or record it anew", EXIT_CONFIG
            ) from error
        found |= item.image == image and lock is not None and item.lock_id == lock.lock_id
    return found
