"""Signatures by the real cosign where it is installed; the rest by any program of that name."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from build_command import BuildCommand
from made_layout import layer, write_layout

from images.errors import EXIT_CHECK_FAILED, EXIT_DATA, EXIT_UNAVAILABLE, EXIT_USAGE, UserError
from images.lockfile import read_lock
from images.provenance import statement, text
from images.signing import sign, verify_signature
from images.specfile import load_specs

KEY = Path("cosign.pub")
needs_cosign = pytest.mark.skipif(shutil.which("cosign") is None, reason="cosign is not installed")


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    write_layout(tmp_path / "layout", [layer({"opt/a": {"content": b"a"}})])
    return tmp_path / "layout"


@pytest.fixture
def folder(tmp_path: Path, layout: Path) -> Path:
    """An inventory of that image."""
    path = tmp_path / "inventory"
    path.mkdir()
    files = {"sbom.cdx.json": b"{}", "licences.txt": b"MIT"}
    for name, content in files.items():
        (path / name).write_bytes(content)
    digest = json.loads((layout / "index.json").read_text(encoding="utf-8"))["manifests"][0]["digest"]
    info = json.loads((Path(__file__).parents[2] / "images/rendered/cpu/build-info.json").read_text("utf-8"))
    lock = read_lock("cpu")
    assert lock
    document = statement("oci:layout", digest, load_specs()["cpu"], info, lock, files)
    (path / "provenance.json").write_text(text(document), encoding="utf-8")
    return path


@pytest.fixture
def content_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cosign that finds every signature right."""
    program = tmp_path / "bin/cosign"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 0\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COSIGN_PASSWORD", "of a test")
    command = ["cosign", "generate-key-pair"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    return tmp_path


@needs_cosign
def test_a_signed_inventory_is_found_right_and_a_changed_statement_is_not(
    folder: Path, layout: Path, keys: Path, build_py: BuildCommand
) -> None:
    done = build_py("sign", folder, f"--key={keys / 'cosign.key'}")
    assert done.returncode == 0, done.stderr
    check = ["verify-signature", folder, f"--key={keys / 'cosign.pub'}", f"--image=oci:{layout}"]
    done = build_py(*check)
    assert done.returncode == 0, done.stderr
    assert "is what was signed" in done.stdout.splitlines()[1]
    assert "no image was compared" in build_py(*check[:-1]).stdout.splitlines()[1]
    path = folder / "provenance.json"
    path.write_text(path.read_text(encoding="utf-8").replace("cpu", "gpu"), encoding="utf-8")
    done = build_py(*check)
    assert done.returncode == EXIT_CHECK_FAILED
    assert done.stderr.startswith("error: cosign verify-blob: ")
    assert "invalid signature" in done.stderr


@needs_cosign
def test_a_wrong_password_is_told_in_cosign_s_words(
    folder: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COSIGN_PASSWORD", "another")
    with pytest.raises(UserError, match="cosign sign-blob: ") as caught:
        sign(str(folder), keys / "cosign.key")
    assert "COSIGN_PASSWORD" in caught.value.hint


def test_without_cosign_it_is_told_how_to_get_it(folder: Path, build_py: BuildCommand) -> None:
    for command in ("sign", "verify-signature"):
        done = build_py(command, folder, "--key=none", PATH="/nonexistent")
        assert done.returncode == EXIT_UNAVAILABLE
        assert "error: sign: the program cosign is not installed" in done.stderr
        assert "apt-get install cosign" in done.stderr


def test_a_file_that_was_changed_after_signing_is_named(folder: Path, content_program: None) -> None:
    (folder / "licences.txt").write_text("other", encoding="utf-8")
    (folder / "sbom.cdx.json").unlink()
    with pytest.raises(UserError) as caught:
        verify_signature(str(folder), KEY)
    first, second = caught.value.message.splitlines()
    assert first.endswith("sbom.cdx.json: is missing")
    assert second.endswith("licences.txt: is not the file that was signed")
    assert caught.value.exit_code == EXIT_CHECK_FAILED


def test_another_image_than_the_signed_one_is_refused(
    folder: Path, tmp_path: Path, layout: Path, content_program: None
) -> None:
    assert len(verify_signature(str(folder), KEY, f"oci:{layout}")) == 2
    write_layout(tmp_path / "other", [layer({"opt/a": {"content": b"b"}})])
    with pytest.raises(UserError, match="was signed"):
        verify_signature(str(folder), KEY, f"oci:{tmp_path / 'other'}")


def test_an_image_in_a_registry_is_signed_by_digest_alone(content_program: None) -> None:
    with pytest.raises(UserError, match="no image by digest") as caught:
        sign("registry.example/isotune:cpu", KEY)
    assert caught.value.exit_code == EXIT_USAGE
    digest = f"registry.example/isotune@sha256:{'0' * 64}"
    assert sign(digest, KEY) == f"signed {digest}"
    with pytest.raises(UserError, match="--image: has no effect"):
        verify_signature(digest, KEY, "oci:x")


@pytest.mark.parametrize("text", ["no json", "{}", '{"subject": []}', "[]"])
def test_a_folder_without_a_statement_is_refused(tmp_path: Path, text: str, content_program: None) -> None:
    (tmp_path / "provenance.json").write_text(text, encoding="utf-8")
    for work in (sign, verify_signature):
        with pytest.raises(UserError, match="is no provenance") as caught:
            work(str(tmp_path), KEY)
        assert caught.value.exit_code == EXIT_DATA


@pytest.mark.parametrize(("version", "more"), [("v2.5.0", 0), ("v3.0.2", 1), ("v3.1.3", 1)])
def test_no_version_of_cosign_tells_a_public_log(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, more: int
) -> None:
    """What version 3 does without its own switches was read in its issues; here its options are looked at."""
    program, said = tmp_path / "bin/cosign", tmp_path / "said"
    program.parent.mkdir()
    record = f'case $1 in version) echo "GitVersion:    {version}" ;; *) echo "$@" >>{said} ;; esac'
    program.write_text(f"#!/bin/sh\n{record}\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    digest = f"registry.example/isotune@sha256:{'0' * 64}"
    for target in (str(folder), digest):
        sign(target, KEY)
        verify_signature(target, KEY)
    calls = [line.split() for line in said.read_text(encoding="utf-8").splitlines()]
    assert [call[0] for call in calls] == ["sign-blob", "verify-blob", "sign", "verify"]
    for call in calls:
        signs = call[0].startswith("sign")
        assert call.count("--tlog-upload=false") == signs
        assert call.count("--use-signing-config=false") == (signs and more)
        assert call.count("--new-bundle-format=false") == more
