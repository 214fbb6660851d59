"""The file system, user and tools that are looked at; a folder in place of `/` is another machine's."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import stat
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

TOOL_SECONDS = 20.0
LARGEST_OUTPUT = 1 << 20


@dataclass(frozen=True)
class Identity:
    """A user as permissions see it."""

    uid: int
    gids: frozenset[int]

    @staticmethod
    def of_process() -> Identity:
        return Identity(os.geteuid(), frozenset([os.getegid(), *os.getgroups()]))


@dataclass(frozen=True)
class Answer:
    """What a tool said. fault: why there is no use in it: absent, hung, or failed."""

    text: str
    fault: str = ""


@dataclass(frozen=True)
class Root:
    """`folder` stands for `/`. `tool_folders`: where tools lie besides PATH."""

    folder: Path = Path("/")
    user: Identity = field(default_factory=Identity.of_process)
    tool_folders: tuple[str, ...] = ()

    def at(self, path: str) -> Path:
        """Where an absolute path lies."""
        return self.folder / path.lstrip("/")

    def exists(self, path: str) -> bool:
        try:
            return self.at(path).exists()
        except OSError:  # a folder on the way that this user may not enter
            return False

    def glob(self, pattern: str) -> list[str]:
        """The absolute paths that a pattern finds, in order of their names."""
        found = self.folder.glob(pattern.lstrip("/"))
        return sorted("/" + str(path.relative_to(self.folder)) for path in found)

    def read(self, path: str) -> str:
        """A file's text, or nothing where it cannot be read."""
        try:
            with self.at(path).open(encoding="utf-8", errors="replace") as file:
                return file.read(LARGEST_OUTPUT)
        except OSError:
            return ""

    def is_empty_folder(self, path: str) -> bool:
        try:
            return self.at(path).is_dir() and not any(self.at(path).iterdir())
        except OSError:
            return False

    def owner(self, path: str) -> tuple[int, int] | None:
        """Mode and group of a path, None where it cannot be asked for."""
        try:
            status = self.at(path).stat()
        except OSError:
            return None
        return stat.S_IMODE(status.st_mode), status.st_gid

    def may(self, path: str, wanted: int) -> bool:
        """Whether the user has the rights `wanted` (bits of one octal digit) by mode and groups."""
        try:
            status = self.at(path).stat()
        except OSError:
            return False
        if self.user.uid == 0:
            return True
        mode = status.st_mode
        if status.st_uid == self.user.uid:
            return mode >> 6 & wanted == wanted
        if status.st_gid in self.user.gids:
            return mode >> 3 & wanted == wanted
        return mode & wanted == wanted

    def tool(self, name: str) -> Path | None:
        """Where a tool lies."""
        usual = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
        path = os.environ.get("PATH", "").split(os.pathsep) if self.folder == Path("/") else []
        folders = dict.fromkeys([*path, *usual, *self.tool_folders])
        found = shutil.which(name, path=os.pathsep.join(str(self.at(one)) for one in folders if one))
        return Path(found) if found else None

    def ask(self, command: str, seconds: float = TOOL_SECONDS) -> Answer:
        """Run a vendor's tool and return what it said on both streams. One that hangs is ended."""
        name, *arguments = shlex.split(command)
        path = self.tool(name)
        if path is None:
            return Answer("", f"{name} is not here")
        return _run([str(path), *arguments], name, seconds)


def _run(command: list[str], name: str, seconds: float) -> Answer:
    try:
        # A session of its own: what it starts is ended with it, and no Ctrl-C of the terminal reaches it.
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as error:
        return Answer("", f"{name} cannot be started: {error.strerror}")
    try:
        said = process.communicate(timeout=seconds)[0][:LARGEST_OUTPUT].decode("utf-8", "replace")
    except subprocess.TimeoutExpired:
        _end(process)
        return Answer("", f"{name} gave no answer in {seconds:g} s")
    return Answer(said, f"{name} failed with {process.returncode}" if process.returncode else "")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a tool and what it started, without waiting for it: in a driver's call it cannot even be killed."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1)
    if process.stdout:
        process.stdout.close()
