"""Build twice without a cache, or once against an image that is there, and explain every difference."""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from images.build import BuildOptions, build
from images.errors import EXIT_CHECK_FAILED, UserError
from images.layout import Difference, compare, digest_of
from images.spec import BackendSpec

HINT = "each line above is a file that depends on more than the commit: on time, order, chance or this host"


def reproduce(spec: BackendSpec, options: BuildOptions, against: str | None, keep: Path | None) -> str:
    """Return a line that says two builds are one; prints every difference and raises UserError (1) if not.

    `against` is a digest or oci:PATH that replaces the first build; `keep` is where the layouts stay.
    """
    if keep:
        keep.mkdir(parents=True)
        return _reproduce(spec, options, against, keep)
    with tempfile.TemporaryDirectory(prefix="isotune-reproduce-") as folder:
        return _reproduce(spec, options, against, Path(folder))


def _reproduce(spec: BackendSpec, options: BuildOptions, against: str | None, folder: Path) -> str:
    first = _layout(against) if against else folder / "first"
    if not against:
        _cold(spec, options, folder / "first")
    second = folder / "second"
    digests = (digest_of(first) if first else str(against), _cold(spec, options, second))
    if digests[0] == digests[1]:
        return f"{spec.image}: {'a cold build gives' if against else 'two cold builds give'} {digests[0]}"
    found = list(compare(first, second)) if first else []
    print("\n".join(map(str, found)))
    raise _error(spec, digests, found, known=first is not None)


def _layout(against: str) -> Path | None:
    kind, _, path = against.partition(":")
    return Path(path) if kind == "oci" else None


def _cold(spec: BackendSpec, options: BuildOptions, output: Path) -> str:
    print(f"cold build: {output.name}", file=sys.stderr, flush=True)
    return build(spec, replace(options, output=output, no_cache=True))


def _error(spec: BackendSpec, digests: tuple[str, str], found: list[Difference], known: bool) -> UserError:
    message = f"reproduce: {spec.image}: {digests[0]} and {digests[1]}"
    if not known:
        return UserError(message, "--against oci:PATH compares file by file", EXIT_CHECK_FAILED)
    places = {difference.where for difference in found}
    message += f": {len(found)} differing, in {len(places)} layers or places"
    return UserError(message, HINT, EXIT_CHECK_FAILED)
