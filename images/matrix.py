"""The compatibility matrix: one row per image, from specs, locks and evidence; and the rules behind it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from images import compatibility
from images.errors import EXIT_CONFIG, EXIT_DATA, UserError
from images.evidence import read_evidence, summary
from images.lockfile import lock_status
from images.reproduced import is_reproduced
from images.spec import BackendSpec
from images.spec_types import UNRESOLVED

BEGIN, END = "<!-- matrix: python3 build.py matrix --update README.md -->", "<!-- end of matrix -->"
HEADINGS = (
    "Image",
    "Choose with",
    "Python",
    "torch",
    "With",
    "Driver",
    "For",
    "Lock",
    "Base",
    "Shown to work",
)


def show(specs: Iterable[BackendSpec], as_json: bool, page: Path | None) -> str:
    """Return the matrix as text or JSON, or write it into a page and return what was done."""
    found = rows(specs)
    if page:
        return f"{page}: {'updated' if update(page, table(found)) else 'up to date'}"
    return json.dumps(found, indent=2) if as_json else table(found)


def rows(specs: Iterable[BackendSpec]) -> list[dict[str, Any]]:
    """Return one object per image; a later version may add keys, none is renamed."""
    return [_row(spec) for spec in specs]


def table(found: list[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table in aligned columns."""
    lines = [HEADINGS, *(_cells(row) for row in found)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    padded = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines]
    return "\n".join([padded[0], "| " + " | ".join("-" * width for width in widths) + " |", *padded[1:]])


def rules() -> str:
    """Return every row of the compatibility table with its source."""
    lines = []
    for relation in compatibility.load_table():
        lines.append(f"{relation.title} ({relation.source}, {relation.confidence})")
        for row in relation.rows:
            named = f"  named: {_pairs(row.named)}" if row.named else ""
            own = row.source or row.confidence
            source = (
                f"  ({row.source or relation.source}, {row.confidence or relation.confidence})" if own else ""
            )
            lines.append(f"  {_pairs(row.when)}  needs  {_pairs(row.needs)}{named}{source}")
    return "\n".join(lines)


def update(path: Path, text: str) -> bool:
    """Write the matrix between the marks of a file; returns whether it changed, UserError without marks."""
    try:
        old = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{path}: cannot be read: {error.strerror}", "name a file such as README.md", EXIT_DATA
        ) from None
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise UserError(
            f"{path}: has no marks for the matrix", f"put two lines: {BEGIN} and {END}", EXIT_CONFIG
        )
    new = f"{before}{BEGIN}\n{text}\n{END}{after}"
    if new != old:
        path.write_text(new, encoding="utf-8")
    return new != old


def _row(spec: BackendSpec) -> dict[str, Any]:
    status, lock = lock_status(spec)
    return {
        "image": spec.image,
        "backend": spec.name,
        "variant": spec.variant,
        "default": spec.is_default,
        "title": spec.title,
        "python": spec.python.version,
        "torch": {machine: version for version, found in spec.torch_versions().items() for machine in found},
        "torch_provided": spec.torch.provided,
        "plugin": spec.plugin.model_dump(include={"distribution", "version"}) if spec.plugin else None,
        "toolkit": spec.toolkit.model_dump() if spec.toolkit else None,
        "cuda": spec.torch.build.cuda,
        "driver": spec.driver.model_dump(include={"minimum", "maximum"}),
        "architectures": spec.architectures,
        "lock": status,
        "lock_id": lock.lock_id if lock else None,
        "unresolved": _unresolved(lock.wheels if lock else []),
        "base": spec.base.reference,
        "base_digest": spec.base.digest,
        "base_confidence": spec.base.confidence,
        "evidence": summary(read_evidence(spec.image), lock),
        "reproduced": is_reproduced(spec.image, lock),
    }


def _unresolved(wheels: list[dict[str, str]]) -> list[str]:
    """Return the Pythons and architectures whose wheel has no hash: `cp310 x86_64`."""
    return [f"{item['python']} {item['architecture']}" for item in wheels if item["sha256"] == UNRESOLVED]


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    driver = row["driver"]
    variant = f" --variant {row['variant']}" if not row["default"] else ""
    return (
        f"`{row['image']}`",
        f"`--backend {row['backend']}{variant}`",
        row["python"],
        _torch(row),
        _companions(row),
        _range(driver["minimum"], driver["maximum"]),
        ", ".join(row["architectures"]),
        f"{row['lock']}" + (f", without {', '.join(row['unresolved'])}" if row["unresolved"] else ""),
        f"`{row['base']}`, " + ("digest unresolved" if row["base_digest"] == UNRESOLVED else "by digest"),
        row["evidence"] + ("; reproduced" if row["reproduced"] else ""),
    )


def _torch(row: dict[str, Any]) -> str:
    versions = dict.fromkeys(row["torch"].values())
    if len(versions) == 1:
        return next(iter(versions)) + (" (the base's)" if row["torch_provided"] else "")
    return ", ".join(f"{version} ({machine})" for machine, version in row["torch"].items())


def _companions(row: dict[str, Any]) -> str:
    plugin, toolkit, cuda = row["plugin"], row["toolkit"], row["cuda"]
    found = [f"{plugin['distribution']} {plugin['version']}"] if plugin else []
    found += [f"{toolkit['name'].upper()} {toolkit['version']}"] if toolkit else []
    return ", ".join(found + ([f"CUDA {cuda}"] if cuda[:1].isdigit() else [])) or "-"


def _range(low: str, high: str) -> str:
    if low == "none":
        return "-"
    return f">= {low}" if high == "none" else f"{low} to {high}"


def _pairs(ranges: dict[str, str]) -> str:
    return ", ".join(f"{name} {wanted}" for name, wanted in ranges.items())
