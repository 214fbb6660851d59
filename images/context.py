"""The build context: the few files that an image is made of, with the same modes and times on every host."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from images.spec import IMAGES, ROOT

# 2026-01-01: for a tree without a commit.
FIXED_EPOCH = 1767225600
# What a build reads of images/ itself.
IN_IMAGE = (
    "__init__.py",
    "entrypoint.sh",
    "frozen.py",
    "healthcheck",
    "installed.py",
    "launcher",
    "licences.py",
    "pins.py",
    "record.py",
    "sbom.py",
    "settle.sh",
    "trim.json",
    "trim.py",
)
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.pyc", ".*", "*.egg-info")


@dataclass(frozen=True)
class Revision:
    """What the image is built from. `note` says why a value is not the commit's own."""

    commit: str
    epoch: int
    note: str = ""


def revision() -> Revision:
    """Return the commit and its time; SOURCE_DATE_EPOCH in the environment wins, as everywhere."""
    given = os.environ.get("SOURCE_DATE_EPOCH", "")
    commit, time = _git("rev-parse", "HEAD"), _git("log", "-1", "--format=%ct")
    if not commit or not time:
        epoch = int(given) if given.isdigit() else FIXED_EPOCH
        return Revision("unknown", epoch, f"no commit here: times in the image are set to {epoch}")
    epoch = int(given) if given.isdigit() else int(time)
    if _git("status", "--porcelain", "--", "train", "images"):
        return Revision(
            f"{commit}-modified", epoch, "train/ or images/ differ from the commit: labelled `-modified`"
        )
    return Revision(commit, epoch)


def prepare(folder: Path, image: str, epoch: int) -> None:
    """Copy the context into an empty folder, laid out as in the repository: the Dockerfile fits both."""
    shutil.copytree(ROOT / "train", folder / "train", ignore=LEFT_OUT)
    rendered = Path("images/rendered") / image
    names = [Path("images") / name for name in IN_IMAGE]
    names += [Path("images/locks") / image / "requirements.txt"]
    names += [rendered / path.name for path in sorted((IMAGES / "rendered" / image).iterdir())]
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / name)
    for path in [folder, *folder.rglob("*")]:
        # A checkout's modes follow the user's umask; the image's must not.
        path.chmod(0o755 if path.is_dir() or path.suffix == ".sh" or path.name == "launcher" else 0o644)
        os.utime(path, (epoch, epoch))


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
