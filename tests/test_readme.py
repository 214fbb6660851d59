"""README says what the repository shows: its matrix is that of `build.py matrix`, its commands and paths
exist.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from build import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]

TRAIN_COMMANDS = ("verify", "doctor", "make-tiny", "check-data", "eval", "generate", "merge", "info")


def run(*arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shell_lines(page: str) -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL)
    return [
        line.partition("  #")[0].strip()
        for block in blocks
        for line in block.replace("\\\n", " ").splitlines()
    ]


def test_the_matrix_is_what_build_py_makes_of_specs_locks_and_evidence() -> None:
    """Mended by `python3 build.py matrix --update README.md`."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    block = re.search(r"<!-- matrix: .*? -->\n(.*?)<!-- end of matrix -->", page, re.DOTALL)
    assert block is not None
    assert block[1] == run("build.py", "matrix")


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_of_the_repository(page: str) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text(encoding="utf-8"))
    assert [target for target in targets if not (ROOT / target).exists()] == []


def test_every_option_in_a_shown_command_is_known() -> None:
    helps = {
        "build.py": "".join(
            run("build.py", *command, "--help") for command in ([], *([name] for name in COMMANDS))
        ),
        "train": "".join(
            run("-c", "from train.cli import main; main()", *command, "--help")
            for command in ([], *([name] for name in TRAIN_COMMANDS))
        ),
        "quickstart.sh": (ROOT / "quickstart.sh").read_text(encoding="utf-8"),
    }
    lines = shell_lines("README.md")
    for program, text in helps.items():
        shown = [line for line in lines if re.search(rf"(^|[ /]){re.escape(program)}( |$)", line)]
        assert shown, program
        for line in shown:
            own = re.split(rf"{re.escape(program)}(?= |$)", line, maxsplit=1)[1]
            for option in re.findall(r"(?<= )--[a-z][a-z-]*", own):
                assert option in text, f"{program} {option}"
