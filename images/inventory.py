"""Put an image's inventory beside it: SBOM, licences and provenance, in one folder."""

from __future__ import annotations

import json
from pathlib import Path

from images.errors import EXIT_USAGE, UserError
from images.extract import extract
from images.lockfile import require_fresh
from images.provenance import PROVENANCE, require_same, statement, text
from images.sbom import LICENCES, SBOM
from images.spec import BackendSpec

PREFIX = "/opt/isotune"


def write_inventory(spec: BackendSpec, image: str, folder: Path) -> list[str]:
    """Copy SBOM and licences out of an image, and write its provenance; returns a line for each file.

    image: a reference that the engine has, or oci:PATH; each of several platforms gets its own folder.
    Raises UserError where it is of another spec or lock.
    """
    lock = require_fresh(spec)
    lines: list[str] = []
    for found in extract(image, [f"{PREFIX}/{name}" for name in ("build-info.json", SBOM, LICENCES)]):
        info = json.loads(found.files[f"{PREFIX}/build-info.json"])
        require_same(spec, lock, info, image)
        files = {name: found.files[f"{PREFIX}/{name}"] for name in (SBOM, LICENCES)}
        document = statement(found.name, found.digest, spec, info, lock, files)
        lines += _write(folder / found.platform, {**files, PROVENANCE: text(document).encode()})
    return lines


def _write(folder: Path, files: dict[str, bytes]) -> list[str]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / name).write_bytes(content)
    except OSError as error:
        message = f"{folder}: cannot be written: {error.strerror}"
        raise UserError(message, "name another folder", EXIT_USAGE) from None
    return [f"{folder / name}: {what}" for name, what in _described(files).items()]


def _described(files: dict[str, bytes]) -> dict[str, str]:
    components = json.loads(files[SBOM])["components"]
    packages = [item for item in components if "purl" in item]
    numbers = [sum(item["purl"].startswith(f"pkg:{kind}/") for item in packages) for kind in ("pypi", "deb")]
    unknown = [item["name"] for item in packages if not item.get("licenses")]
    return {
        SBOM: "CycloneDX 1.6, {} Python packages, {} system packages".format(*numbers),
        LICENCES: f"{len(unknown)} packages without a known licence",
        PROVENANCE: "in-toto statement, SLSA provenance v1",
    }
