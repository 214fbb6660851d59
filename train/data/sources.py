"""Where rows come from: a file, a folder, a glob, or a dataset that `datasets` saved; found, hashed, read."""

from __future__ import annotations

import glob
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from train.data.formats import Conversion, convert_rows
from train.data.records import Fault, Row, hash_file, read_json
from train.data.tables import read_arrow, read_csv, read_parquet
from train.data.text import KINDS
from train.errors import EXIT_DATA, UserError, reading

READERS: dict[str, Callable[[Path], Iterator[Row | Fault]]] = {
    ".jsonl": read_json,
    ".json": read_json,
    ".csv": read_csv,
    ".tsv": read_csv,
    ".parquet": read_parquet,
    ".arrow": read_arrow,
}
_SPLIT = re.compile(r"(?:^|[-_.])(train|test|valid|validation|val|dev|eval)(?=[-_.]|$)")


@dataclass(frozen=True)
class Source:
    """A path as it was given, the files that it names in the order of reading, and the names beside them
    that are of no known kind.
    """

    path: Path
    files: tuple[Path, ...]
    not_read: tuple[str, ...] = ()

    def kinds(self) -> list[str]:
        """How each file is read: equal content of another kind gives other rows."""
        return [_kind(path) for path in self.files]

    def lines(self) -> list[str]:
        """What is read and what is not, in words; nothing for a plain file."""
        if self.files == (self.path,):
            return []
        names = _few([path.name for path in self.files])
        lines = [f"{self.path}: reads {len(self.files)} files: {names}"]
        return lines + ([f"{self.path}: does not read {_few(self.not_read)}"] if self.not_read else [])


def find_source(path: Path) -> Source:
    """The files of a path; UserError (exit 65) where there are none or where they cannot be opened.

    A file that exists goes before a glob of the same text. Files of a folder or glob are taken by their kind
    and sorted by name.
    """
    hint = f"--data takes {KINDS}; in a container mount it: -v /path/to/data:/data:ro"
    with reading(path, hint, EXIT_DATA):
        source = _named(path)
        faults = [fault for file in source.files if (fault := _not_openable(file))]
    if faults:
        raise UserError("\n".join(faults), hint, EXIT_DATA)
    return source


def _named(path: Path) -> Source:
    if path.is_dir():
        return _saved_dataset(path) or _of_entries(path, sorted(path.iterdir()))
    if not path.exists() and glob.has_magic(str(path)):
        found = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207  (its roots may be absolute)
        return _of_entries(path, [Path(name) for name in found])
    return Source(path, (path,))


def read_records(source: Source) -> Conversion:
    """All rows of a source as records, with every fault; rows are read and converted one at a time."""
    return convert_rows(row for path in source.files for row in _reader(path)(path))


def hash_source(source: Source) -> str:
    """sha256 of the content that is read, whatever its files are called: of the file where it is one,
    else of the files' hashes in order.
    """
    hashes = [hash_file(path) for path in source.files]
    return (
        hashes[0]
        if len(hashes) == 1
        else f"sha256:{hashlib.sha256(chr(10).join(hashes).encode()).hexdigest()}"
    )


def _reader(path: Path) -> Callable[[Path], Iterator[Row | Fault]]:
    """By the name's ending; a file of another ending, named by itself, is JSON or JSON lines."""
    return READERS.get(_kind(path), read_json)


def _kind(path: Path) -> str:
    packed = path.suffix == ".gz"
    kind = path.with_suffix("").suffix if packed else path.suffix
    return "" if packed and kind in (".parquet", ".arrow") else kind.lower()


def _of_entries(path: Path, entries: list[Path]) -> Source:
    files = tuple(entry for entry in entries if entry.is_file() and _kind(entry) in READERS)
    rest = tuple(
        f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries if entry not in files
    )
    if not files:
        found = f"holds {_few(rest)}" if rest else ("is empty" if path.is_dir() else "matches nothing")
        raise UserError(f"{path}: {found}: no file to read", f"--data takes {KINDS}", EXIT_DATA)
    splits: dict[str, list[str]] = {}
    for file in files:
        for name in _SPLIT.findall(file.name.lower()):
            splits.setdefault({"valid": "validation", "val": "validation"}.get(name, name), []).append(
                file.name
            )
    if len(splits) > 1:
        shown = "; ".join(f"{name}: {_few(names)}" for name, names in sorted(splits.items()))
        raise UserError(
            f"{path}: holds files of several splits ({shown})",
            f"name the files of one split, for example {path / '*train*' if path.is_dir() else splits}",
            EXIT_DATA,
        )
    return Source(path, files, rest)


def _saved_dataset(folder: Path) -> Source | None:
    """The files of a folder that `save_to_disk` wrote, None for another; several splits are refused."""
    if (folder / "dataset_dict.json").is_file():
        names = [entry.name for entry in sorted(folder.iterdir()) if (entry / "state.json").is_file()]
        raise UserError(
            f"{folder}: is a saved dataset with the splits {', '.join(names)}",
            f"name one of them: {folder / names[0] if names else folder}",
            EXIT_DATA,
        )
    if not (folder / "state.json").is_file():
        return None
    try:
        content = json.loads((folder / "state.json").read_text(encoding="utf-8"))
        return Source(folder, tuple(folder / file["filename"] for file in content["_data_files"]))
    except (OSError, ValueError, KeyError, TypeError) as fault:
        raise UserError(
            f"{folder}/state.json: does not name the dataset's files: {fault!r}", "save it again", EXIT_DATA
        ) from None


def _not_openable(path: Path) -> str:
    if path.exists() and not path.is_file():
        return f"{path}: is a pipe or a device, which can be read only once; a file is due"
    try:
        with path.open("rb"):
            return ""
    except OSError as fault:
        return f"{path}: cannot be read: {fault.strerror}"


def _few(names: list[str] | tuple[str, ...]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
