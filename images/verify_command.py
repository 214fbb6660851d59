"""`build.py verify`: run the verification that is baked into an image on this host, and keep its report."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from images.errors import EXIT_CHECK_FAILED, EXIT_DATA, EXIT_UNAVAILABLE, UserError
from images.evidence import EVIDENCE, Evidence, Verified, write_evidence
from images.extract import extract
from images.inventory import PREFIX
from images.run_options import run_options
from images.spec import BackendSpec
from images.spec_types import UNKNOWN

if TYPE_CHECKING:
    from images.engine import Engine

BUILD_INFO = f"{PREFIX}/build-info.json"
HARD = ["--rm", "--network=none", "--read-only", "--tmpfs=/tmp"]
HOST = ("ServerVersion", "OperatingSystem", "NCPU")
REFUSED = 125
"""The exit code of `docker run` where no container was started."""


def verify(spec: BackendSpec, image: str, folder: Path = EVIDENCE) -> list[str]:
    """Run `train verify --json` in an image of the engine; returns lines with the result and its file.

    What the spec names and this host lacks is told on stderr: the device part then says that it was skipped.
    Raises UserError (1) with each failed check, after the file is written; 69 where no container starts.
    """
    from images.engine import connect

    engine = connect()
    if image.startswith("oci:"):
        raise UserError(f"{image}: only an engine runs an image", "docker load it first", EXIT_DATA)
    (found,) = extract(image, [BUILD_INFO])
    info = json.loads(found.files[BUILD_INFO])
    if (info["backend"], info["variant"]) != (spec.name, spec.variant):
        own = "-".join(filter(None, (info["backend"], info["variant"])))
        message = f"{image}: is an image of {own}, not of {spec.image}"
        raise UserError(message, f"--backend {info['backend']}, or another image", EXIT_DATA)
    done, note = _run(engine, spec, image)
    evidence = _evidence(engine, spec, image, info, _verified(done), note)
    path = write_evidence(evidence, folder)
    checks = evidence.verify.checks
    lines = [f"{one.status:<8}{one.part}: {one.name}: {one.detail}" for one in checks]
    failed = [f"{image}: {one.part}: {one.name}: {one.detail}" for one in checks if one.status == "failed"]
    if failed:
        raise UserError("\n".join(failed), f"all of it is in {path}", EXIT_CHECK_FAILED)
    return [*lines, f"evidence: {path}"]


def _run(engine: Engine, spec: BackendSpec, image: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """Return the finished container and what of the spec's options it had to do without."""
    found = run_options(spec.runtime)
    command = [image, "train", "verify", "--json"]
    for line in found.absent:
        print(f"note: {line}", file=sys.stderr)
    done = engine.run([*HARD, *found.options, *found.vendor], command)
    if done.returncode != REFUSED or not found.vendor:
        return done, "; ".join(found.absent)
    # Such as a device request without the vendor's runtime: the device part says what it finds without.
    note = f"without {' '.join(found.vendor)}: {_last_line(done.stderr)}"
    print(f"note: {note}", file=sys.stderr)
    return engine.run([*HARD, *found.options], command), "; ".join([*found.absent, note])


def _verified(done: subprocess.CompletedProcess[str]) -> Verified:
    if done.returncode == REFUSED:
        message = f"verify: no container was started: {_last_line(done.stderr)}"
        raise UserError(message, "build.py doctor looks at this host", EXIT_UNAVAILABLE)
    try:
        return TypeAdapter(Verified).validate_json(done.stdout)
    except ValidationError:
        words = _last_line(done.stderr)
        message = f"verify: `train verify --json` ended with {done.returncode} and without a report: {words}"
        raise UserError(message, "docker run IMAGE train verify", EXIT_CHECK_FAILED) from None


def _evidence(
    engine: Engine, spec: BackendSpec, image: str, info: dict[str, Any], verified: Verified, note: str
) -> Evidence:
    architecture = engine.image_architecture(image)
    what = f"base {info['base_image']}" if info["base_overridden"] else "the spec's base"
    version, system, cores = (engine.info.get(key, UNKNOWN) for key in HOST)
    place = f"{what}; Docker Engine {version} on {system}, {cores} {engine.architecture} cores"
    place += f"; network none, read-only root{'; ' if note else ''}{note}"
    data = {
        "image": spec.image,
        "lock_id": info["lock_id"],
        "architecture": architecture,
        "commit": info["commit"],
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "base": "stand-in" if info["base_overridden"] else "named",
        "place": place,
        "emulated": architecture != engine.architecture,
        "verify": verified,
    }
    return Evidence.model_validate(data)


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if not line.startswith("See 'docker run")]
    return lines[-1] if lines else "no word"
