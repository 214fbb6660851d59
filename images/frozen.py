"""Hold packages that a base image brings: note their files before the install, compare them after it.

Runs inside a build, as a script beside no package: standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
import sysconfig
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import Any

SHOWN = 10


def snapshot(wanted: dict[str, str]) -> dict[str, Any]:
    """Return name -> version, place and the sha256 of each installed file.

    Raises SystemExit with every package that the base image does not have, or has in another version.
    """
    found, faults = {}, []
    for name, version in wanted.items():
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            faults.append(
                f"error: {name}: the base image does not have it, the spec says that it is provided"
            )
            continue
        if distribution.version != version:
            faults.append(
                f"error: {name}: the base image has {distribution.version}, the spec says {version}"
            )
        found[name] = describe(distribution)
    if faults:
        raise SystemExit("\n".join(faults))
    return found


def describe(distribution: metadata.Distribution) -> dict[str, Any]:
    """Return what a later moment is compared with. Byte code is left out: it may be written at any time."""
    place = Path(str(distribution.locate_file("")))
    listed = [Path(str(path)) for path in distribution.files or []]
    # A package that pip did not install has no list: then its folder is what counts.
    if not listed:
        folder = place / (distribution.metadata["Name"] or "").replace("-", "_")
        listed = [path.relative_to(place) for path in folder.rglob("*") if path.is_file()]
    paths = sorted(path for path in listed if path.suffix != ".pyc")
    return {
        "version": distribution.version,
        "place": str(place),
        "files": {str(path): sha256_file(place / path) for path in paths},
    }


def sha256_file(path: Path) -> str:
    """Return the hex sha256 of a file, or `missing`."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while block := stream.read(1 << 22):
                digest.update(block)
    except OSError:
        return "missing"
    return digest.hexdigest()


def compare(before: dict[str, Any], wanted: dict[str, str]) -> Iterator[str]:
    """Yield what was replaced or changed since the snapshot, and versions that are not the spec's."""
    for name, old in before.items():
        try:
            new = describe(metadata.distribution(name))
        except metadata.PackageNotFoundError:
            yield f"{name}: was removed"
            continue
        if name in wanted and new["version"] != wanted[name]:
            yield f"{name}: is {new['version']}, the spec says {wanted[name]}"
        if new["place"] != old["place"]:
            yield f"{name}: was replaced: it came from {old['place']}, now it comes from {new['place']}"
            continue
        for path in sorted({*old["files"], *new["files"]}):
            if old["files"].get(path) != new["files"].get(path):
                yield f"{name}: {old['place']}/{path} changed after the base image"


def refused(patterns: list[str], site: str) -> Iterator[str]:
    """Yield packages of the environment that belong to another build of torch; the base may have such."""
    found = metadata.distributions(path=[site])
    names = {re.sub(r"[-_.]+", "-", item.metadata["Name"] or "").lower() for item in found}
    for name in sorted(names):
        if any(fnmatch(name, pattern) for pattern in patterns):
            yield f"{name}: is refused here: it belongs to another build of torch"


def main() -> None:
    """Write the snapshot, or compare with it; ends with 1 and every fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="where the snapshot goes")
    parser.add_argument("--compare", type=Path, help="the snapshot to compare with")
    parser.add_argument("--provided", nargs="*", default=[], metavar="NAME==VERSION")
    parser.add_argument("--refused", nargs="*", default=[], metavar="PATTERN")
    parser.add_argument("--site", default=sysconfig.get_path("purelib"), help="where the lock was installed")
    arguments = parser.parse_args()
    wanted = dict(item.split("==", 1) for item in arguments.provided)
    if arguments.write:
        text = json.dumps(snapshot(wanted), indent=1, sort_keys=True) + "\n"
        arguments.write.write_text(text, encoding="utf-8")
        return
    before = json.loads(arguments.compare.read_text(encoding="utf-8")) if arguments.compare else {}
    faults = [*compare(before, wanted), *refused(arguments.refused, arguments.site)]
    for fault in faults[:SHOWN]:
        print(f"error: {fault}", file=sys.stderr)
    if len(faults) > SHOWN:
        print(f"error: and {len(faults) - SHOWN} more", file=sys.stderr)
    if faults:
        raise SystemExit(1)
    files = sum(len(item["files"]) for item in before.values())
    print(f"{len(before)} provided packages with {files} files are as the base image brought them")


if __name__ == "__main__":
    main()
