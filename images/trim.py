"""Take files that no training needs out of an environment, by the patterns of trim.json; their list stays.

Runs inside a build, as a script beside no package: standard library only.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

SCHEMA = 1
TRIMMED = "trimmed.json"


@dataclass(frozen=True)
class Rule:
    """Patterns of paths below site-packages, and why such files are not needed. `*` crosses folders."""

    what: str
    why: str
    patterns: list[str]


def read_rules(path: Path) -> list[Rule]:
    """Return the rules of trim.json."""
    return [Rule(**rule) for rule in json.loads(path.read_text(encoding="utf-8"))]


def rule_of(path: str, rules: list[Rule]) -> Rule | None:
    """Return the first rule that a path below site-packages falls under, or None if it stays.

    What describes a package, its licences among it, always stays.
    """
    if ".dist-info/" in path:
        return None
    return next((rule for rule in rules if any(fnmatchcase(path, p) for p in rule.patterns)), None)


def trim(prefix: Path, rules: list[Rule]) -> dict[str, Any]:
    """Remove the files of installed wheels below a virtual environment that a rule names; returns their list.

    Only what a RECORD lists is touched, so nothing that lies outside the environment, such as the torch of
    a base image.
    """
    removed: dict[str, list[str]] = {rule.what: [] for rule in rules}
    sizes = dict.fromkeys(removed, 0)
    folders = set()
    for site, name in _listed(prefix):
        path, rule = site / name, rule_of(name, rules)
        if rule is None or not path.is_file():
            continue
        sizes[rule.what] += path.stat().st_size
        removed[rule.what].append(name)
        path.unlink()
        folders.add((path.parent, site))
    for folder, site in folders:
        _remove_empty(folder, site)
    return {
        "schema": SCHEMA,
        "rules": [
            {"what": r.what, "why": r.why, "bytes": sizes[r.what], "files": sorted(removed[r.what])}
            for r in rules
        ],
    }


def _listed(prefix: Path) -> Iterator[tuple[Path, str]]:
    """Yield site-packages and each path below it that an installed wheel brought."""
    for record in sorted(prefix.glob("lib/python3*/site-packages/*.dist-info/RECORD")):
        with record.open(newline="", encoding="utf-8") as file:
            names = [row[0] for row in csv.reader(file) if row]
        yield from ((record.parent.parent, name) for name in names if not name.startswith(("..", "/")))


def _remove_empty(folder: Path, site: Path) -> None:
    while folder != site and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def main() -> None:
    """Trim an environment, write the list into it, and say what was taken out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rules", type=Path, required=True)
    parser.add_argument("--prefix", type=Path, required=True, help="the virtual environment")
    arguments = parser.parse_args()
    found = trim(arguments.prefix, read_rules(arguments.rules))
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    (arguments.prefix / TRIMMED).write_text(text, encoding="utf-8")
    for rule in found["rules"]:
        print(f"{rule['what']}: {len(rule['files'])} files, {rule['bytes'] / 1e6:.1f} MB: {rule['why']}")
    count = sum(len(rule["files"]) for rule in found["rules"])
    total = sum(rule["bytes"] for rule in found["rules"])
    print(f"took out {count} files of {total / 1e6:.1f} MB; {arguments.prefix / TRIMMED} lists them")


if __name__ == "__main__":
    main()
