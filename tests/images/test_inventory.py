"""An image's inventory beside it, from a layout: copied files, and a statement on what it was made from."""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from build_command import ROOT, BuildCommand
from made_layout import add_blob, layer, write_layout

from images.errors import EXIT_DATA, EXIT_USAGE, UserError
from images.extract import extract
from images.inventory import write_inventory
from images.lockfile import read_lock
from images.specfile import load_specs

COMMIT = "1" * 40
SPEC = load_specs()["cpu"]
SBOM = {
    "components": [
        {"name": "a", "purl": "pkg:pypi/a@1", "licenses": []},
        {"name": "b", "purl": "pkg:deb/debian/b@1", "licenses": [{}]},
        {"name": "base"},
    ]
}


def made(layout: Path, **changes: Any) -> str:
    """An image with the files of a real one, small; returns its digest."""
    info = json.loads((ROOT / "images/rendered/cpu/build-info.json").read_text(encoding="utf-8"))
    info |= {"commit": COMMIT, "source_date_epoch": 1700000000, **changes}
    old = {"opt/isotune/licences.txt": {"content": b"an older layer"}}
    new = {
        "opt/isotune/build-info.json": {"content": json.dumps(info).encode()},
        "opt/isotune/sbom.cdx.json": {"content": json.dumps(SBOM).encode()},
        "opt/isotune/licences.txt": {"content": b"licences\n"},
    }
    return write_layout(layout, [layer(old), layer(new), layer({"opt/other": {"content": b"x"}})])


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    made(tmp_path / "layout")
    return tmp_path / "layout"


def statement(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "provenance.json").read_text(encoding="utf-8"))


def test_the_command_writes_three_files_and_says_what_they_hold(
    layout: Path, tmp_path: Path, build_py: BuildCommand
) -> None:
    done = build_py("inventory", "--backend=cpu", f"oci:{layout}", f"--output={tmp_path / 'out'}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{tmp_path / 'out'}/sbom.cdx.json: CycloneDX 1.6, 1 Python packages, 1 system packages",
        f"{tmp_path / 'out'}/licences.txt: 1 packages without a known licence",
        f"{tmp_path / 'out'}/provenance.json: in-toto statement, SLSA provenance v1",
    ]
    assert (tmp_path / "out/licences.txt").read_bytes() == b"licences\n"


def test_an_image_with_two_names_has_one_inventory(layout: Path) -> None:
    """As the engine writes a layout of two tags: an entry for each name."""
    index = json.loads((layout / "index.json").read_text(encoding="utf-8"))
    index["manifests"] *= 2
    (layout / "index.json").write_text(json.dumps(index), encoding="utf-8")
    assert len(extract(f"oci:{layout}", ["/opt/isotune/licences.txt"])) == 1


def test_the_statement_names_the_image_and_all_that_it_was_made_from(layout: Path, tmp_path: Path) -> None:
    write_inventory(SPEC, f"oci:{layout}", tmp_path / "out")
    digest = json.loads((layout / "index.json").read_text(encoding="utf-8"))["manifests"][0]["digest"]
    found, lock = statement(tmp_path / "out"), read_lock("cpu")
    assert lock
    assert found["_type"] == "https://in-toto.io/Statement/v1"
    assert found["predicateType"] == "https://slsa.dev/provenance/v1"
    assert found["subject"] == [{"name": "oci:layout", "digest": {"sha256": digest.partition(":")[2]}}]
    build = found["predicate"]["buildDefinition"]
    assert build["externalParameters"] == {"backend": "cpu", "variant": None}
    source, base, locked = build["resolvedDependencies"]
    assert source["digest"] == {"gitCommit": COMMIT}
    assert "annotations" not in source
    assert f"sha256:{base['digest']['sha256']}" == SPEC.base.digest
    assert base["uri"] == f"docker-image://{SPEC.base.reference}"
    requirements = (ROOT / locked["name"]).read_bytes()
    assert locked["digest"]["sha256"] == hashlib.sha256(requirements).hexdigest()
    run = found["predicate"]["runDetails"]
    assert run["builder"]["id"].startswith("urn:")
    hashes = {one["name"]: one["digest"]["sha256"] for one in run["byproducts"]}
    assert hashes["licences.txt"] == hashlib.sha256(b"licences\n").hexdigest()


def test_what_is_not_known_by_digest_is_not_given_one(tmp_path: Path) -> None:
    changes = {"base_digest": "unresolved", "base_image": "mine:1", "base_overridden": True}
    made(tmp_path / "layout", commit="unknown", **changes)
    write_inventory(SPEC, f"oci:{tmp_path / 'layout'}", tmp_path / "out")
    build = statement(tmp_path / "out")["predicate"]["buildDefinition"]
    assert build["externalParameters"]["baseImage"] == "mine:1"
    source, base, _ = build["resolvedDependencies"]
    assert "digest" not in source
    assert "digest" not in base


def test_a_tree_with_changes_is_not_told_as_its_commit_alone(tmp_path: Path) -> None:
    made(tmp_path / "layout", commit=f"{COMMIT}-modified")
    write_inventory(SPEC, f"oci:{tmp_path / 'layout'}", tmp_path / "out")
    source = statement(tmp_path / "out")["predicate"]["buildDefinition"]["resolvedDependencies"][0]
    assert (source["digest"], source["annotations"]) == ({"gitCommit": COMMIT}, {"modified": True})


def test_the_same_image_gives_the_same_bytes_also_from_a_tar(layout: Path, tmp_path: Path) -> None:
    (tmp_path / "tarred").mkdir()
    with tarfile.open(tmp_path / "tarred/layout", "w") as archive:
        for path in sorted(layout.rglob("*")):
            archive.add(path, path.relative_to(layout))
    for number, where in enumerate((layout, layout, tmp_path / "tarred/layout")):
        write_inventory(SPEC, f"oci:{where}", tmp_path / str(number))
    texts = [(tmp_path / str(number) / "provenance.json").read_bytes() for number in range(3)]
    assert texts[0] == texts[1] == texts[2]


def test_each_platform_of_a_layout_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    layout = tmp_path / "layout"
    digests = [made(layout, isotune=version) for version in ("1", "2")]
    platforms = [{"os": "linux", "architecture": name} for name in ("amd64", "arm64")]
    listed = [{"digest": one, "platform": two} for one, two in zip(digests, platforms, strict=True)]
    index = add_blob(layout, json.dumps({"manifests": listed}).encode())
    (layout / "index.json").write_text(json.dumps({"manifests": [index]}), encoding="utf-8")
    assert len(write_inventory(SPEC, f"oci:{layout}", tmp_path / "out")) == 6
    for name, digest in zip(("linux-amd64", "linux-arm64"), digests, strict=True):
        (subject,) = statement(tmp_path / "out" / name)["subject"]
        assert f"sha256:{subject['digest']['sha256']}" == digest


def test_an_image_of_another_spec_or_lock_is_refused_with_all_that_differs(tmp_path: Path) -> None:
    made(tmp_path / "layout", backend="cuda", lock_id="0" * 12)
    with pytest.raises(UserError) as caught:
        write_inventory(SPEC, f"oci:{tmp_path / 'layout'}", tmp_path / "out")
    first, second = caught.value.message.splitlines()
    assert "its backend is cuda, here it is cpu" in first
    assert "its lock id is 000000000000, here it is" in second
    assert f"git checkout {COMMIT}" in caught.value.hint
    assert caught.value.exit_code == EXIT_DATA
    assert not (tmp_path / "out").exists()


def test_every_file_that_an_image_lacks_is_named(tmp_path: Path) -> None:
    write_layout(tmp_path / "layout", [layer({"opt/isotune/licences.txt": {"content": b"x"}})])
    with pytest.raises(UserError) as caught:
        write_inventory(SPEC, f"oci:{tmp_path / 'layout'}", tmp_path / "out")
    first, second = caught.value.message.splitlines()
    assert first.endswith("has no /opt/isotune/build-info.json")
    assert second.endswith("has no /opt/isotune/sbom.cdx.json")


def test_a_link_is_no_file_of_an_image(tmp_path: Path) -> None:
    link = {"opt/isotune/licences.txt": {"type": tarfile.SYMTYPE, "linkname": "/etc/hostname"}}
    write_layout(tmp_path / "layout", [layer(link)])
    with pytest.raises(UserError, match=r"has no /opt/isotune/licences.txt"):
        extract(f"oci:{tmp_path / 'layout'}", ["/opt/isotune/licences.txt"])


@pytest.mark.parametrize("content", [None, b"no archive"])
def test_what_is_no_layout_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "image.tar"
    if content:
        path.write_bytes(content)
    with pytest.raises(UserError, match="is not an OCI layout of one image"):
        extract(f"oci:{path}", [])


def test_a_place_that_cannot_be_written_is_told(layout: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(UserError, match="cannot be written") as caught:
        write_inventory(SPEC, f"oci:{layout}", tmp_path / "file")
    assert caught.value.exit_code == EXIT_USAGE
