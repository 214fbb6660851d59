"""The inventory of an image: a CycloneDX 1.6 SBOM and a list of licences, the same bytes for the same image.

Runs inside a build too, as `python -m images.sbom`: standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import uuid
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from images.installed import Package, os_release, python_packages, system_packages
from images.licences import entries, licence_list
from images.pins import parse_requirements

SBOM, LICENCES = "sbom.cdx.json", "licences.txt"


def bom(
    info: dict[str, Any],
    others: list[dict[str, Any]],
    python: list[Package],
    system: list[Package],
    note: str = "",
) -> dict[str, Any]:
    """Return the SBOM of an image. info: its build-info; others: components that are no packages; note: what
    of the system's packages is unknown.
    """
    document: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": _metadata(info, note),
        "components": [*others, *map(_component, [*python, *system])],
    }
    # No random number: the same content has the same serial number.
    digest = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    return {**document, "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, digest)}"}


def _metadata(info: dict[str, Any], note: str) -> dict[str, Any]:
    name = "-".join(filter(None, ("isotune", info["backend"], info["variant"])))
    facts = ("commit", "lock_id", "spec_checksum", "base_image", "base_digest", "base_overridden")
    properties = [_property(f"isotune:{fact.replace('_', '-')}", _text(info[fact])) for fact in facts]
    properties += [_property("isotune:system-packages", note)] if note else []
    found: dict[str, Any] = {
        "tools": {"components": [{"type": "application", "name": "isotune", "version": info["isotune"]}]},
        "component": {"type": "container", "bom-ref": "image", "name": name, "version": info["lock_id"]},
        "properties": properties,
    }
    if info["source_date_epoch"]:
        moment = datetime.fromtimestamp(info["source_date_epoch"], tz=timezone.utc)
        found = {"timestamp": moment.strftime("%Y-%m-%dT%H:%M:%SZ"), **found}
    return found


def _component(package: Package) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "purl": package.purl,
    }
    if package.sha256:
        found["hashes"] = [{"alg": "SHA-256", "content": package.sha256}]
    if package.licences:
        found["licenses"] = entries(package.licences)
    if package.properties:
        found["properties"] = [_property(name, value) for name, value in package.properties]
    return found


def others(info: dict[str, Any], root: Path) -> list[dict[str, Any]]:
    """Return what is in the image and no package: the base, its system, Python, and the train command."""
    system = os_release(root)
    named = [("container", "base", info["base_image"], info["base_digest"])]
    if system:
        named.append(("operating-system", "system", system["ID"], system.get("VERSION_ID", "unknown")))
    named.append(("platform", "python", "CPython", platform.python_version()))
    found = [
        {"type": kind, "bom-ref": reference, "name": name, "version": version}
        for kind, reference, name, version in named
    ]
    own = {"type": "application", "bom-ref": "train", "name": "isotune-train", "version": info["isotune"]}
    return [*found, {**own, "licenses": [{"license": {"id": "Apache-2.0"}}]}]


def write(info: dict[str, Any], requirements: Path, root: Path, folder: Path) -> None:
    """Write both files; `root` is the image's file system, `folder` where they go."""
    python = python_packages(parse_requirements(requirements.read_text(encoding="utf-8")))
    system, note = system_packages(root)
    document = bom(info, others(info, root), python, system, note)
    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    (folder / SBOM).write_text(text, encoding="utf-8")
    title = f"Licences of the packages in {document['metadata']['component']['name']}, lock {info['lock_id']}"
    title += f"\nSystem packages: {note}" if note else ""
    packages = [part for part in document["components"] if "purl" in part]
    (folder / LICENCES).write_text(licence_list(title, packages), encoding="utf-8")


def main() -> None:
    """Describe the image that this runs in."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prefix", type=Path, required=True, help="the folder of build-info.json")
    parser.add_argument("--requirements", type=Path, required=True, help="the lock, with hashes")
    arguments = parser.parse_args()
    info = json.loads((arguments.prefix / "build-info.json").read_text(encoding="utf-8"))
    write(info, arguments.requirements, Path("/"), arguments.prefix)


def _property(name: str, value: str) -> dict[str, str]:
    return {"name": name, "value": value}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


if __name__ == "__main__":
    main()
