"""Places that the system lets nobody look at, by every option that takes one: place, cure, and 65 or 78."""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from train.cli import call

LONG = "/tmp/" + "m" * 5000
"""No system has names of this length, and asking for one fails for any user."""
SHORT_RUN = ["--adapter", "lora", "--set", "max_steps=1"]


def called(*arguments: object) -> tuple[int, str]:
    told: list[str] = []
    with contextlib.redirect_stdout(io.StringIO()):
        code = call([str(argument) for argument in arguments], told.append)
    return code, "\n".join(told)


def places(tiny: Path, rows: Path, output: Path, closed: str) -> dict[str, tuple[list[object], int]]:
    """What a user may type -> the arguments, and the exit code that is due."""
    run = [*SHORT_RUN, "--output", output]
    return {
        "data": ([*run, "--model", tiny, "--data", closed], 65),
        "eval-data": ([*run, "--model", tiny, "--data", rows, "--eval-data", closed], 65),
        "model": ([*run, "--model", closed, "--data", rows], 78),
        "config": (["--config", closed], 78),
        "init_adapter": (
            [*run, "--model", tiny, "--data", rows, "--set", f"init_adapter={closed}"],
            78,
        ),
        "eval": (["eval", "--model", tiny, "--data", rows, "--adapter", closed], 78),
        "info": (["info", closed], 78),
        "merge": (["merge", "--model", tiny, "--adapter", tiny, "--output", closed], 78),
        "make-tiny": (["make-tiny", "--output", closed], 78),
    }


NAMES = list(places(Path(), Path(), Path(), ""))


@pytest.mark.parametrize("name", NAMES)
def test_an_overlong_name_is_told_with_a_cure_and_the_options_own_code(
    name: str, tiny: Path, rows_file: Path, tmp_path: Path
) -> None:
    arguments, due = places(tiny, rows_file, tmp_path / "out", LONG)[name]
    code, told = called(*arguments)
    assert (code, "File name too long" in told, "hint: " in told) == (due, True, True), told
    assert len(told) < 1500


def test_a_closed_folder_above_a_place_is_told_with_a_cure_and_the_options_own_code(
    tiny: Path, rows_file: Path
) -> None:
    """All places in one process of another user: starting one takes longer than what it does."""
    if os.geteuid() or not shutil.which("setpriv"):
        pytest.skip("only root may become another user, by setpriv")
    top = Path("/var/tmp") / f"isotune-closed-{os.getpid()}"
    try:
        (top / "closed").mkdir(parents=True)
        shutil.copytree(tiny, top / "model")
        shutil.copyfile(rows_file, top / "rows.jsonl")
        (top / "closed").chmod(0o700)
        top.chmod(0o755)
        done = subprocess.run(
            ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", sys.executable, __file__, top],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
        )
    finally:
        shutil.rmtree(top)
    assert done.stdout.splitlines() == [f"{name} True True True" for name in NAMES], done.stdout + done.stderr


def test_a_chat_template_of_an_adapter_that_cannot_be_read_is_a_fault_of_the_configuration(
    tiny: Path, rows_file: Path, copy_of: Callable[..., Path]
) -> None:
    adapter = copy_of("lora")
    (adapter / "chat_template.jinja").symlink_to("/proc/self/mem")
    code, told = called("eval", "--model", tiny, "--data", rows_file, "--adapter", adapter)
    assert (code, "chat_template.jinja: cannot be read" in told, "copy the adapter" in told) == (
        78,
        True,
        True,
    )


if __name__ == "__main__":
    here = Path(sys.argv[1])
    for case, (asked, wanted) in places(
        here / "model", here / "rows.jsonl", Path(f"/tmp/isotune-out-{os.getpid()}"), f"{here}/closed/it"
    ).items():
        exit_code, words = called(*asked)
        print(case, exit_code == wanted, "Permission denied" in words, "hint: let uid 12345" in words)
        if exit_code != wanted:
            print(words, file=sys.stderr)
