"""Packages of the base's distribution: exact versions from a dated archive, its mirror told as a secret."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from build_command import ROOT

from images.sources import Sources, parse_mirrors
from images.specfile import load_specs, read_spec

MOMENT = "20260928T000000Z"


def test_each_package_is_installed_at_one_version_from_a_dated_archive() -> None:
    text = (ROOT / "images/rendered/cuda/Dockerfile").read_text(encoding="utf-8")
    assert " python3.12=3.12.3-1ubuntu0.17 \\\n" in text
    sources = [line for line in text.splitlines() if line.strip().startswith("'deb ")]
    assert [MOMENT in line for line in sources] == [True, True, True]
    assert all("signed-by=" in line for line in sources)
    assert "apt-get" not in (ROOT / "images/rendered/cpu/Dockerfile").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (f"/ubuntu/{MOMENT}", "/ubuntu", "expected the address of a dated snapshot"),
        ("python3: 3.12.3-0ubuntu2.1", 'python3: "*"', "system_packages.versions.python3: is '*'"),
    ],
)
def test_a_spec_without_a_date_or_a_version_is_refused(
    damaged: Callable[..., Path], old: str, new: str, told: str
) -> None:
    _, faults = read_spec(damaged((old, new), name="cuda"))
    assert told in "\n".join(map(str, faults))


def test_the_mirror_of_an_archive_is_a_secret_of_the_build(tmp_path: Path) -> None:
    spec = load_specs()["cuda"]
    assert "apt" not in Sources(mirrors=parse_mirrors(["docker.io=m.example.org"])).secrets(spec, tmp_path)
    secrets = Sources(mirrors=parse_mirrors(["snapshot.ubuntu.com=user:word@m.example.org"])).secrets(
        spec, tmp_path
    )
    lines = secrets["apt"].read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3
    assert all(f"https://user:word@m.example.org/ubuntu/{MOMENT} noble" in line for line in lines)
    assert secrets["apt"].stat().st_mode & 0o777 == 0o600
