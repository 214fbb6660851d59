"""Files as text: UTF-8 with or without BOM, or UTF-16 with one; anything else is refused with the cure."""

from __future__ import annotations

import codecs
import gzip
import io
import zlib
from pathlib import Path
from typing import IO

from train.errors import EXIT_DATA, UserError

KINDS = ".jsonl, .json, .csv, .tsv, .parquet or .arrow files, or a folder or a glob of them"
UNREADABLE = (OSError, EOFError, zlib.error)
"""What reading a file may raise, gzip's faults among them."""
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class _Decoded(io.TextIOWrapper):
    """A text file read piece by piece, whose faults are those of `read_text`."""

    def __init__(self, path: Path, newline: str) -> None:
        self.path = path
        try:
            with open_bytes(path) as file:
                encoding = "utf-16" if file.read(2).startswith(_UTF16) else "utf-8-sig"
            super().__init__(open_bytes(path), encoding, newline=newline)
        except UNREADABLE as fault:
            raise unreadable(path, fault) from None

    def read(self, size: int | None = -1) -> str:
        try:
            return super().read(size)
        except (UnicodeDecodeError, *UNREADABLE) as fault:
            raise _whole_fault(self.path, fault) from None

    def __next__(self) -> str:  # type: ignore[override]
        try:
            return super().__next__()
        except (UnicodeDecodeError, *UNREADABLE) as fault:
            raise _whole_fault(self.path, fault) from None


def open_text(path: Path, newline: str = "\n") -> io.TextIOWrapper:
    """The file as lines that end where `newline` says: never at a U+2028, which may stand inside a string.

    Opening and reading raise UserError as `read_text` does.
    """
    return _Decoded(path, newline)


def read_text(path: Path) -> str:
    """The whole file as text; UserError (exit 65) with the line where it is none."""
    try:
        with open_bytes(path) as file:
            content = file.read()
    except UNREADABLE as fault:
        raise unreadable(path, fault) from None
    try:
        return content.decode("utf-16" if content.startswith(_UTF16) else "utf-8-sig")
    except UnicodeDecodeError as fault:
        line = content.count(b"\n", 0, fault.start) + 1
        raise _not_text(path, line, _guess_encoding(content)) from None


def open_bytes(path: Path) -> IO[bytes]:
    """The file's content, unpacked where its name ends in .gz."""
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def unreadable(path: Path, fault: Exception) -> UserError:
    """The error (exit 65) of a file that cannot be read as a whole."""
    reason = getattr(fault, "strerror", None) or str(fault)
    return UserError(f"{path}: cannot be read: {reason}", f"--data takes {KINDS}", EXIT_DATA)


def _whole_fault(path: Path, fault: Exception) -> UserError:
    """Why a file cannot be read on, with the line: a decoder knows the place in its own buffer only."""
    try:
        read_text(path)
    except UserError as told:
        return told
    return unreadable(path, fault)


def _not_text(path: Path, line: int, guess: str) -> UserError:
    if not guess:
        return UserError(f"{path}:{line}: is not UTF-8 text", "save the file as UTF-8", EXIT_DATA)
    plain = path.name.removesuffix(".gz")
    command = f"iconv -f {guess} -t UTF-8"
    command = f"{command} {path}" if plain == path.name else f"zcat {path} | {command}"
    message = f"{path}:{line}: is not UTF-8 text; it looks like {guess}"
    return UserError(message, f"{command} > utf8-{plain}", EXIT_DATA)


def _guess_encoding(content: bytes) -> str:
    for encoding in ("GB18030", "BIG5", "SHIFT_JIS"):
        try:
            content.decode(encoding)
        except UnicodeDecodeError:
            continue
        return encoding
    return ""


def is_utf8(text: str) -> bool:
    """Whether what the system gave, a word of the command line or a path, was UTF-8: Python holds other bytes
    as halves of pairs.
    """
    return not any("\ud800" <= character <= "\udfff" for character in text)
