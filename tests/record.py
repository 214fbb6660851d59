"""Run a long job, keep its outcome: `python tests/record.py JOB -- COMMAND...` writes tests/records/JOB.txt.

A record says what ran, when, on which commit and versions, how it ended, and the last lines of what it said.
A job that failed is recorded as failed; the exit code is the command's own.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections import deque
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "tests" / "records"
TAIL = 60
PACKAGES = ("torch", "transformers", "peft", "accelerate")
PATH = re.compile(r"(?<![\w.:/-])(?:(?:\.\./)+|/)(?:[\w.+-]+/)*[\w.+-]+")
"""An absolute path or one that leads out of a folder, not one that a relative path or an address ends in."""
ADDRESS = re.compile(r"\b[a-z][a-z+]*://[^\s'\"]*")
OUTCOMES = (":!tests/records", ":!images/evidence")
"""What the jobs themselves write: no change of what they test."""
IN_IMAGE = ("/opt/isotune", "/model", "/data", "/out")


def run(command: list[str]) -> tuple[int, list[str], float]:
    """Exit code, last lines of both outputs, seconds; what the command says goes on to the terminal."""
    started, last = time.monotonic(), deque[str](maxlen=TAIL)
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            last.append(line.rstrip())
    return process.returncode, list(last), time.monotonic() - started


def commit() -> str:
    """The commit's id, with a word where files beside OUTCOMES differ from it; `unknown` outside git."""
    told = []
    for words in (["rev-parse", "HEAD"], ["status", "--porcelain", "--", ".", *OUTCOMES]):
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=False)
        if done.returncode:
            return "unknown"
        told.append(done.stdout.strip())
    return f"{told[0]}, with changes" if told[1] else told[0]


def without_places(line: str) -> str:
    """A line without addresses, whose paths here are cut to their last part; an image's own paths stay."""

    def short(found: re.Match[str]) -> str:
        path = found.group()
        known = any(path == place or path.startswith(f"{place}/") for place in IN_IMAGE)
        return path if known or path == "/tmp" else f".../{path.rsplit('/', 1)[1]}"

    return PATH.sub(short, ADDRESS.sub("ADDRESS", line.replace(f"{ROOT}/", "")))


def text(command: list[str], tested: str, code: int, lines: list[str], seconds: float) -> str:
    versions = ", ".join(f"{name} {_version(name)}" for name in PACKAGES)
    head = {
        "command": shlex.join([Path(command[0]).name, *command[1:]]),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": tested,
        "machine": f"{platform.machine()}, {os.cpu_count()} processors",
        "environment": f"Python {platform.python_version()}, {versions}",
        "outcome": ("passed" if code == 0 else f"failed: exit code {code}") + f" in {seconds:.0f} s",
    }
    said = "\n".join(without_places(line) for line in lines)
    return "".join(f"{key}: {without_places(value)}\n" for key, value in head.items()) + f"\n{said}\n"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"


def main(arguments: list[str]) -> int:
    if len(arguments) < 3 or arguments[1] != "--" or not re.fullmatch(r"[\w.-]+", arguments[0]):
        print(__doc__, file=sys.stderr)
        return 64
    command, tested = arguments[2:], commit()  # another may be made while the job runs
    code, lines, seconds = run(command)
    RECORDS.mkdir(exist_ok=True)
    (RECORDS / f"{arguments[0]}.txt").write_text(
        text(command, tested, code, lines, seconds), encoding="utf-8"
    )
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
