"""What is costly to make, kept on local disk under a key of all that it depends on, never beside the inputs.

A folder that cannot be written, a full disk or a damaged entry costs time and a word, never a run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy

    Arrays = dict[str, numpy.ndarray]

KEPT_ENTRIES = 64
OWN_NAME = re.compile(r"[0-9a-f]{64}(?:\.npz|-\w+\.tmp)")
"""So many entries stay in the folder, those used last."""
_DAMAGE = (ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError)


def cached(key: Mapping[str, Any], make: Callable[[], Arrays], notes: list[str]) -> Arrays:
    """The arrays that `make` gives for this key, from disk where they were made before.

    `key`: everything that decides the result, as JSON takes it. What is worth saying is added to `notes`.
    What `make` raises passes, and nothing is kept.
    """
    folder = find_folder(notes)
    path = folder / f"{_digest(key)}.npz" if folder else None
    if path and (found := _read(path, notes)) is not None:
        notes.append(f"samples as tokenised before, from {path}")
        return found
    made = make()
    if path:
        _write(path, made, notes)
    return made


def find_folder(notes: list[str]) -> Path | None:
    """$ISOTUNE_CACHE, else isotune in $XDG_CACHE_HOME or ~/.cache, else in the folder for temporary files:
    the first that this user may write. A folder that was asked for and cannot serve is noted.
    """
    asked = os.environ.get("ISOTUNE_CACHE")
    for path in [Path(asked)] if asked else _usual_places():
        if not (reason := _unfit(path)):
            return path
        if asked:
            notes.append(f"note: $ISOTUNE_CACHE {path} cannot serve ({reason}): samples are not kept")
            return None
    notes.append("note: no folder for a cache can be written: samples are not kept")
    return None


def _usual_places() -> Iterator[Path]:
    if base := os.environ.get("XDG_CACHE_HOME"):
        yield Path(base) / "isotune"
    with contextlib.suppress(RuntimeError):  # a uid without a home
        yield Path.home() / ".cache" / "isotune"
    with contextlib.suppress(OSError):  # none at all
        path = Path(tempfile.gettempdir()) / f"isotune-{os.getuid()}"
        if not path.is_symlink() and (not path.exists() or path.stat().st_uid == os.getuid()):
            yield path  # where all may write, another user may have made it


def _unfit(path: Path) -> str:
    """Why a folder cannot be written, made where it is missing; empty where it can."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as fault:
        return fault.strerror or str(fault)
    return "" if os.access(path, os.W_OK | os.X_OK) else f"uid {os.getuid()} may not write it"


def _digest(key: Mapping[str, Any]) -> str:
    text = json.dumps(key, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _read(path: Path, notes: list[str]) -> Arrays | None:
    """The arrays of an entry; None where there is none. A damaged one is set aside."""
    import numpy

    try:
        with numpy.load(path, allow_pickle=False) as content:  # reading compares the checksum of each part
            found = {name: content[name] for name in content.files}
    except FileNotFoundError:
        return None
    except OSError as fault:
        notes.append(f"note: {path} cannot be read ({fault.strerror or fault}): its samples are made anew")
        return None
    except _DAMAGE as fault:
        aside = path.with_suffix(".damaged")
        notes.append(
            f"note: {path} is damaged ({fault}): set aside as {aside.name}, its samples are made anew"
        )
        with contextlib.suppress(OSError):
            path.replace(aside)
        return None
    with contextlib.suppress(OSError):
        path.touch()
    return found


def _write(path: Path, arrays: Arrays, notes: list[str]) -> None:
    """Under a name of its own first, then renamed: a reader never sees half of it, and of two writers the
    last one wins with the same content.
    """
    import numpy

    try:
        with tempfile.NamedTemporaryFile(
            dir=path.parent, prefix=f"{path.stem}-", suffix=".tmp", delete=False
        ) as file:
            try:
                numpy.savez(file, **arrays)
                file.flush()
                os.fsync(file.fileno())
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as fault:
        notes.append(f"note: samples are not kept in {path.parent}: {fault.strerror or fault}")
        return
    with contextlib.suppress(OSError):  # another process may remove the same
        _remove_oldest(path.parent)


def _remove_oldest(folder: Path) -> None:
    """Entries beyond those that are kept, and what a killed process left half written a day ago.

    Only what carries a name of ours: the folder may be anybody's.
    """
    own = [path for path in folder.iterdir() if OWN_NAME.fullmatch(path.name)]
    entries = sorted((path for path in own if path.suffix == ".npz"), key=lambda path: path.stat().st_mtime)
    half = [path for path in own if path.suffix == ".tmp" and time.time() - path.stat().st_mtime > 86_400]
    for path in entries[:-KEPT_ENTRIES] + half:
        path.unlink(missing_ok=True)
