"""Complete build-info.json for one environment: what was installed, and what the build was.

Runs inside a build too, as a script beside no package: standard library only.
"""

from __future__ import annotations

import argparse
import errno
import hashlib
import json
import re
from pathlib import Path
from typing import Any

BUILD_INFO = "build-info.json"
TRIMMED = "trimmed.json"


def site_packages(prefix: Path) -> Path:
    """Return the site-packages folder of a virtual environment, found by path: any Python may ask.

    Raises OSError, with the folder, where there is none or more than one.
    """
    found = sorted(prefix.glob("lib/python3*/site-packages"))
    if len(found) != 1:
        reason = f"expected one lib/python3*/site-packages, found {len(found)}"
        raise FileNotFoundError(errno.ENOENT, reason, str(prefix))
    return found[0]


def records(prefix: Path) -> dict[str, str]:
    """Return distribution -> sha256 of its RECORD, which lists every installed file with its own hash."""
    result = {}
    for record in sorted(site_packages(prefix).glob("*.dist-info/RECORD")):
        name = record.parent.name.removesuffix(".dist-info").rsplit("-", 1)[0]
        result[re.sub(r"[-_.]+", "-", name).lower()] = hashlib.sha256(record.read_bytes()).hexdigest()
    return result


def trimmed(prefix: Path) -> dict[str, Any]:
    """Return the field that fixes the list of files taken out on purpose, nothing where none was taken."""
    path = prefix / TRIMMED
    if not path.exists():
        return {}
    return {"trimmed": {"file": TRIMMED, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}}


def complete(info: dict[str, Any], prefix: Path, build: dict[str, Any]) -> dict[str, Any]:
    """Return build-info with the records of the locked packages and the build's own values."""
    found = records(prefix)
    return {
        **info,
        **build,
        **trimmed(prefix),
        "records": {name: found[name] for name in sorted(info["packages"]) if name in found},
    }


def write(info: dict[str, Any], path: Path) -> None:
    """Write build-info as the same bytes for the same content."""
    path.write_text(json.dumps(info, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    """Read the rendered build-info, complete it, write it into the environment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build-info", type=Path, required=True)
    parser.add_argument("--prefix", type=Path, required=True)
    parser.add_argument("--build", type=json.loads, default={}, help="JSON of the build's own values")
    arguments = parser.parse_args()
    info = json.loads(arguments.build_info.read_text(encoding="utf-8"))
    try:
        write(complete(info, arguments.prefix, arguments.build), arguments.prefix / BUILD_INFO)
    except OSError as fault:
        raise SystemExit(f"error: {fault.filename}: {fault.strerror}") from None


if __name__ == "__main__":
    main()
