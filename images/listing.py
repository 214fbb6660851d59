"""What `build.py list` shows: one row per backend and variant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from images.lockfile import lock_status
from images.spec import BackendSpec
from images.spec_types import UNRESOLVED

COLUMNS = (
    "image",
    "backend",
    "variant",
    "aliases",
    "python",
    "torch",
    "plugin",
    "architectures",
    "lock",
    "digest",
    "base",
)


def rows(specs: Iterable[BackendSpec]) -> list[dict[str, Any]]:
    """Return one object per backend and variant; a later version may add keys, none is renamed."""
    return [_row(spec) for spec in specs]


def table(found: list[dict[str, Any]]) -> str:
    """Return the rows as text in aligned columns."""
    lines = [[column.upper() for column in COLUMNS]] + [
        [_cell(row[column]) for column in COLUMNS] for row in found
    ]
    widths = [max(len(line[index]) for line in lines) for index in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _row(spec: BackendSpec) -> dict[str, Any]:
    status, lock = lock_status(spec)
    return {
        "image": spec.image,
        "backend": spec.name,
        "variant": spec.variant,
        "default": spec.is_default,
        "title": spec.title,
        "aliases": spec.aliases,
        "python": spec.python.version,
        "torch": spec.torch.version,
        "torch_provided": spec.torch.provided,
        "plugin": f"{spec.plugin.distribution} {spec.plugin.version}" if spec.plugin else None,
        "architectures": spec.architectures,
        "lock": status,
        "lock_id": lock.lock_id if lock else None,
        "digest": UNRESOLVED if spec.base.digest == UNRESOLVED else "pinned",
        "base": spec.base.reference,
        "base_digest": spec.base.digest,
    }


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(value) or "-"
    return "-" if value is None else str(value)
