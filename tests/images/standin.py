"""Stand-in builds: an image of a backend on a base that is not the vendor's, and what verify says in it."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from build_command import ROOT, BuildCommand

from images.evidence import Evidence, Verified, write_evidence
from images.lockfile import read_lock

# The tests that take minutes and gigabytes run where this names them, such as `ascend-aarch64,cuda`.
CHOSEN = "ISOTUNE_TEST_STANDIN"
# Where set, what verify said is kept there: images/evidence of this repository, or any folder.
KEPT = "ISOTUNE_TEST_EVIDENCE"

RESTAMP = """
import pathlib, yaml
from images import lockfile, specfile
name = {name!r}
path = pathlib.Path("images/locks") / name / "lock.yaml"
data = yaml.safe_load(path.read_text(encoding="utf-8"))
data["spec_checksum"] = lockfile.spec_checksum(specfile.load_specs()[name])
path.write_text(yaml.safe_dump(data), encoding="utf-8")
"""


def require_chosen(name: str, cost: str) -> None:
    """Skip with the reason, unless the environment names this build."""
    if name not in os.environ.get(CHOSEN, "").split(","):
        pytest.skip(f"{cost}: {CHOSEN}={name} runs it")


def change_spec(build: BuildCommand, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a spec of a copied tree; its comments go."""
    path = build.tree / f"images/backends/{name}.yaml"
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")


def restamp(build: BuildCommand, name: str) -> None:
    """Let the lock of a copied tree stand for its changed spec."""
    subprocess.run([sys.executable, "-c", RESTAMP.format(name=name)], cwd=build.tree, check=True)


def without(options: list[str], *names: str) -> list[str]:
    """Return a build's options without some of them."""
    return [option for option in options if not option.startswith(names)]


def docker(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", *map(str, arguments)], cwd=cwd, capture_output=True, text=True, check=False
    )


def verified(reference: str, architecture: str = "x86_64") -> Verified:
    """Run `train verify --build` the hard way: no network, a read-only root, an unknown uid."""
    platform = {"x86_64": "linux/amd64", "aarch64": "linux/arm64"}[architecture]
    hard = [
        "--rm",
        "--network=none",
        "--read-only",
        "--tmpfs=/tmp",
        "--user=12345:0",
        f"--platform={platform}",
    ]
    done = docker(
        "run",
        *hard,
        "--env=TORCH_DEVICE_BACKEND_AUTOLOAD=0",
        reference,
        "train",
        "verify",
        "--build",
        "--json",
    )
    assert done.stdout.startswith("{"), done.stdout + done.stderr
    return Verified(**json.loads(done.stdout))


def keep(
    image: str, architecture: str, place: str, report: Verified, build: BuildCommand, below: str = ""
) -> None:
    """Write what verify said as evidence where the environment asks for it, perhaps in a folder below."""
    folder = os.environ.get(KEPT)
    lock = read_lock(image, build.tree / "images/locks")
    assert lock
    if not folder:
        return
    commit = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    )
    evidence = Evidence(
        image=image,
        lock_id=lock.lock_id,
        architecture=architecture,
        commit=commit.stdout.strip(),
        date=datetime.date.today().isoformat(),
        base="stand-in",
        place=place,
        emulated=architecture != os.uname().machine,
        verify=report,
    )
    write_evidence(evidence, Path(folder) / below)


def states(report: Verified) -> dict[str, str]:
    """Return check -> its status, or its reason where it was skipped."""
    return {
        check.name: check.status if check.status != "skipped" else f"skipped: {check.detail}"
        for check in report.checks
    }
