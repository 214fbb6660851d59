"""What was seen to work: one file per run of verify, read for the matrix. No file, no claim: `unknown`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, TypeAdapter, ValidationError

from images.errors import EXIT_CONFIG, UserError
from images.lockfile import Lock
from images.spec import IMAGES, ROOT
from images.spec_types import Architecture, Part

EVIDENCE = IMAGES / "evidence"


class Check(Part):
    """One check of `train verify --json`."""

    part: str
    name: str
    status: Literal["passed", "failed", "skipped"]
    seconds: float
    detail: str


class Verified(Part):
    """What `train verify --json` prints."""

    isotune: str
    backend: str
    status: Literal["passed", "failed", "skipped"]
    passed: int
    failed: int
    skipped: int
    checks: list[Check]


class Evidence(Part):
    """One run of verify: where, on what, and its whole report."""

    image: str = Field(description="the name of the image, such as cuda13")
    lock_id: str
    architecture: Architecture
    commit: str
    date: str = Field(pattern=r"^\d{4}-\d\d-\d\d$")
    base: Literal["named", "stand-in", "none"] = Field(
        description="the spec's base image, another one in its place, or no image at all"
    )
    place: str = Field(description="what the base was, and on which host it ran, in words")
    emulated: bool = Field(default=False, description="true where another processor was emulated")
    verify: Verified


def read_evidence(image: str, folder: Path = EVIDENCE) -> list[Evidence]:
    """Return the evidence of an image, oldest file name first; raises UserError with every broken file."""
    found, faults = [], []
    for path in sorted((folder / image).glob("*.json")):
        where = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
        try:
            evidence = TypeAdapter(Evidence).validate_json(path.read_bytes())
        except (ValidationError, OSError) as error:
            faults.append(f"{where}: not evidence: {_first(error)}")
            continue
        if evidence.image != image:
            faults.append(f"{where}: is of {evidence.image}, in the folder of {image}")
        found.append(evidence)
    if faults:
        raise UserError("\n".join(faults), "git checkout images/evidence, or record it anew", EXIT_CONFIG)
    return found


def write_evidence(evidence: Evidence, folder: Path = EVIDENCE) -> Path:
    """Write one run beside the others of its image; a later one on the same base and machine replaces it."""
    emulated = "-emulated" if evidence.emulated else ""
    path = folder / evidence.image / f"{evidence.base}-{evidence.architecture}{emulated}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(evidence.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return path


def summary(found: list[Evidence], lock: Lock | None) -> str:
    """Return what the evidence shows of today's lock, in few words; `unknown` where there is none."""
    current = [item for item in found if lock and item.lock_id == lock.lock_id]
    if current:
        return "; ".join(dict.fromkeys(map(_words, current)))
    return "unknown (evidence of an older lock)" if found else "unknown"


def _words(item: Evidence) -> str:
    """Write one run: the build part and the device part apart, and what it ran on."""
    parts = []
    for part in dict.fromkeys(check.part for check in item.verify.checks):
        states = [check.status for check in item.verify.checks if check.part == part]
        counts = [
            f"{states.count(state)} {state}" for state in ("failed", "passed", "skipped") if state in states
        ]
        parts.append(f"{part} {', '.join(counts)}")
    base = {"named": "named base", "stand-in": "stand-in base", "none": "virtual environment"}[item.base]
    emulated = " emulated" if item.emulated else ""
    return f"{' / '.join(parts)} ({base}, {item.architecture}{emulated})"


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        fault = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, fault['loc']))}: {fault['msg'].lower()}"
    return str(error)
