"""Every command of the cookbook's pages is one that its program takes."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from images.launch.command import launch_text

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted((ROOT / "docs" / "cookbook").glob("*.md"))
DIGEST = "registry.example/team/isotune@sha256:" + "0" * 64
PARTS = ["The host", "Build and push", "Run on one host", "Several nodes", "Stop and resume"]
# Programs of others: the words that may come first.
OTHERS = {
    "docker": {"run", "compose", "image", "info", "wait"},
    "kubectl": {"apply", "get", "logs", "delete"},
    "nvidia-smi": None,
    "npu-smi": {"info"},
    "hy-smi": None,
    "stat": None,
}
CARDS = ["cuda", "ascend", "hygon"]


def commands(page: Path) -> list[list[str]]:
    """Return the words of each command, without comments, redirections and what a shell puts in."""
    blocks = re.findall(r"```sh\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    found = []
    for line in "".join(blocks).replace("\\\n", " ").splitlines():
        text = re.sub(r"\s> \S+$", "", re.sub(r"\$\((?:id|stat) [^)]*\)", "44", line))
        text = re.sub(r"^\w+=\$\((.*)\)$", r"\1", text.replace("$IMAGE", DIGEST))
        found.append(shlex.split(text, comments=True))
    return found


@cache
def help_of(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return done.stdout


def all_commands() -> list[tuple[str, list[str]]]:
    return [(page.stem, words) for page in PAGES for words in commands(page)]


def test_there_is_a_page_for_each_backend_with_all_parts() -> None:
    backends = sorted(path.stem for path in (ROOT / "images" / "backends").glob("*.yaml"))
    assert [page.stem for page in PAGES] == backends
    for page in PAGES:
        assert re.findall(r"^## (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE) == PARTS


@pytest.mark.parametrize(
    ("page", "words"),
    [found for found in all_commands() if found[1][:3] == ["python3", "build.py", "launch"]],
)
def test_a_launch_prints_a_file(page: str, words: list[str]) -> None:
    text = launch_text(words[3:])
    assert DIGEST in text
    assert f"--backend {page}" in text
    assert "without a digest" not in text


@pytest.mark.parametrize(
    ("page", "words"),
    [found for found in all_commands() if found[1][:3] != ["python3", "build.py", "launch"]],
)
def test_a_command_is_known_with_its_options(page: str, words: list[str]) -> None:
    if words[:2] == ["python3", "build.py"]:
        command = words[2:3] if not words[2].startswith("-") else []
        for option in [word for word in words if word.startswith("--")]:
            assert option in help_of("build.py", *command)
    elif words[0] == "python3":
        assert words[:5] == ["python3", "-m", "pip", "install", "--require-hashes"]
        assert (ROOT / words[-1]).exists()
    else:
        allowed = OTHERS[words[0]]
        first = [word for word in words[1:] if not word.startswith("-") and word != "training"]
        assert allowed is None or first[0] in allowed
    if words[:2] == ["docker", "run"]:
        assert words[words.index("train") + 1] == "verify"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_claims_no_run_on_a_card(page: Path) -> None:
    said = "Nothing on this page has run on" in page.read_text(encoding="utf-8")
    assert said == (page.stem in CARDS)
