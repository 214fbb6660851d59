"""The inventory of an image: what pip and dpkg say, in CycloneDX's form, the same bytes every time."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from build_command import ROOT
from cyclonedx_schema import fault_of

from images.context import IN_IMAGE
from images.installed import python_packages, system_packages
from images.pins import Pin
from images.sbom import bom, others

STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Multi-Arch: same
Source: glibc
Version: 2.36-9+deb12u14
Description: GNU C Library
 Package: not-a-field

Package: tar
Status: install ok installed
Architecture: amd64
Version: 1:1.34+dfsg-1

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""
COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
License: GPL-3+

Files: lib/*
License: GPL-3+ and BSD-4-clause-UC

License: GPL-3+
 A text.
"""
PINS = [Pin("Some_Package", "1.0+cpu", "", ("a" * 64,)), Pin("other", "2", "", ("b" * 64, "c" * 64))]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The file system of a small Debian."""
    folder = tmp_path / "root"
    files = {
        "var/lib/dpkg/status": STATUS,
        "etc/os-release": 'ID=debian\nVERSION_ID="12"\nPRETTY_NAME="Debian"\n',
        "usr/share/doc/tar/copyright": COPYRIGHT,
        "usr/share/doc/libc6/copyright": "This is the GNU C Library, in words.\nLicense: none of these\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site-packages"
    metadata = {
        "some_package-1.0+cpu": "Name: Some.Package\nVersion: 1.0+cpu\nLicense-Expression: MIT OR Apache-2.0",
        "other-2": "Name: other\nVersion: 2\nLicense: Apache 2.0",
        "pip-23": "Name: pip\nVersion: 23",
    }
    for name, text in metadata.items():
        (folder / f"{name}.dist-info").mkdir(parents=True)
        (folder / f"{name}.dist-info/METADATA").write_text(f"{text}\n", encoding="utf-8")
        (folder / f"{name}.dist-info/RECORD").write_text(f"{name}.py,,\n", encoding="utf-8")
    return folder


@pytest.fixture
def info() -> dict[str, Any]:
    content = json.loads((ROOT / "images/rendered/cpu/build-info.json").read_text(encoding="utf-8"))
    return {**content, "commit": "0" * 40, "source_date_epoch": 1700000000}


def document(info: dict[str, Any], root: Path, site: Path) -> dict[str, Any]:
    system, note = system_packages(root)
    return bom(info, others(info, root), python_packages(PINS, [str(site)]), system, note)


def part(document: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [one for one in document["components"] if one["name"] == name]
    return found


def test_it_is_valid_by_the_official_schema(info: dict[str, Any], root: Path, site: Path) -> None:
    text = json.dumps(document(info, root, site))
    assert fault_of(text) is None
    assert fault_of(text.replace('"library"', '"book"')) is not None


def test_packages_of_both_databases_have_their_versions_and_addresses(
    info: dict[str, Any], root: Path, site: Path
) -> None:
    purls = [one["purl"] for one in document(info, root, site)["components"] if "purl" in one]
    assert purls == [
        "pkg:pypi/other@2",
        "pkg:pypi/pip@23",
        "pkg:pypi/some-package@1.0%2Bcpu",
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u14?arch=amd64&distro=debian-12",
        "pkg:deb/debian/tar@1:1.34%2Bdfsg-1?arch=amd64&distro=debian-12",
    ]


def test_a_hash_is_claimed_only_where_the_lock_has_one(info: dict[str, Any], root: Path, site: Path) -> None:
    found = document(info, root, site)
    assert part(found, "some-package")["hashes"] == [{"alg": "SHA-256", "content": "a" * 64}]
    assert "hashes" not in part(found, "other")
    locked = [
        one["value"] for one in part(found, "other")["properties"] if one["name"] == "isotune:locked-sha256"
    ]
    assert locked == ["b" * 64, "c" * 64]
    assert part(found, "pip")["properties"][0]["value"] == "not in the lock: the base image brings it"


def test_base_system_python_and_train_are_parts_too(info: dict[str, Any], root: Path, site: Path) -> None:
    found = document(info, root, site)
    assert part(found, info["base_image"])["version"] == info["base_digest"]
    assert part(found, "debian")["version"] == "12"
    assert part(found, "CPython")["version"] == ".".join(map(str, sys.version_info[:3]))
    assert part(found, "isotune-train")["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    facts = {one["name"]: one["value"] for one in found["metadata"]["properties"]}
    assert facts["isotune:commit"] == "0" * 40
    assert facts["isotune:base-overridden"] == "false"
    assert "isotune:system-packages" not in facts


@pytest.mark.parametrize(
    ("database", "words"),
    [("var/lib/rpm", "unknown: the base image has an rpm database, which is not read"),
     ("var/none", "unknown: the base image has no database of dpkg")],
)  # fmt: skip
def test_another_kind_of_distribution_is_told_as_unknown(
    info: dict[str, Any], tmp_path: Path, site: Path, database: str, words: str
) -> None:
    (tmp_path / "root" / database).mkdir(parents=True)
    found = document(info, tmp_path / "root", site)
    assert {"name": "isotune:system-packages", "value": words} in found["metadata"]["properties"]


def test_nothing_in_it_is_of_the_moment_or_of_chance(info: dict[str, Any], root: Path, site: Path) -> None:
    first = document(info, root, site)
    assert first == document(info, root, site)
    assert first["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    assert first["serialNumber"] != document({**info, "lock_id": "0" * 12}, root, site)["serialNumber"]
    assert "timestamp" not in document({**info, "source_date_epoch": 0}, root, site)["metadata"]


def test_it_runs_inside_a_build_with_what_the_context_has(tmp_path: Path, info: dict[str, Any]) -> None:
    """As the Dockerfile calls it: no package of build.py's, nothing of images/ but what is copied."""
    (tmp_path / "images").mkdir()
    for name in IN_IMAGE:
        shutil.copy(ROOT / "images" / name, tmp_path / "images" / name)
    texts = []
    for prefix in (tmp_path / "one", tmp_path / "two"):
        prefix.mkdir()
        (prefix / "build-info.json").write_text(json.dumps(info), encoding="utf-8")
        lock = ROOT / "images/locks/cpu/requirements.txt"
        command = [sys.executable, "-S", "-m", "images.sbom", f"--prefix={prefix}", f"--requirements={lock}"]
        subprocess.run(command, cwd=tmp_path, check=True)
        texts.append([(prefix / name).read_bytes() for name in ("sbom.cdx.json", "licences.txt")])
    assert texts[0] == texts[1]
    assert json.loads(texts[0][0])["bomFormat"] == "CycloneDX"
    assert texts[0][1].startswith(b"Licences of the packages in isotune-cpu, lock ")
