"""What is installed: each check passes on a sound environment and fails on its fault."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
from build_infos import build_content

from train.checks import installed
from train.checks.report import CheckFailed, Skipped
from train.image import BuildInfo


def record_hash(site: Path) -> str:
    return hashlib.sha256((site / "brick-1.0.dist-info" / "RECORD").read_bytes()).hexdigest()


def test_versions_pass_and_a_wrong_or_missing_one_fails_by_name(build: Callable[..., BuildInfo]) -> None:
    assert "1 packages" in installed.versions_equal_lock(build())
    with pytest.raises(CheckFailed, match=r"pydantic .*, the lock says 0.1; .*xyzzy missing|xyzzy missing"):
        installed.versions_equal_lock(build(packages={"pydantic": "0.1", "xyzzy": "1.0"}))


def test_a_provided_package_is_compared_too(build: Callable[..., BuildInfo]) -> None:
    with pytest.raises(CheckFailed, match="torch .*, the lock says 2.7.1"):
        installed.versions_equal_lock(build(provided={"torch": "2.7.1+vendor"}))


def test_a_package_for_another_machine_is_not_asked_for(build: Callable[..., BuildInfo]) -> None:
    here = {"version": metadata.version("pydantic"), "marker": "python_version >= '3.0'"}
    elsewhere = {"version": "0.1", "marker": "platform_machine == 'abacus'"}
    assert "1 packages" in installed.versions_equal_lock(
        build(packages={"pydantic": [elsewhere, here], "xyzzy": elsewhere})
    )


def test_files_pass_and_a_changed_byte_fails_by_name(build: Callable[..., BuildInfo], package: Path) -> None:
    image = build(records={"brick": record_hash(package)})
    assert "1 files of 1 packages" in installed.files_equal_lock(image)
    (package / "brick.py").write_text("print('sand')\n", encoding="utf-8")
    with pytest.raises(CheckFailed, match=r"brick: brick.py changed"):
        installed.files_equal_lock(image)


def test_a_file_that_is_missing_or_a_record_that_was_rewritten_fails(
    build: Callable[..., BuildInfo], package: Path
) -> None:
    image = build(records={"brick": record_hash(package), "xyzzy": "0"})
    (package / "brick.py").unlink()
    with pytest.raises(CheckFailed, match=r"brick.py is missing; xyzzy: has no RECORD"):
        installed.files_equal_lock(image)
    (package / "brick-1.0.dist-info" / "RECORD").write_text("", encoding="utf-8")
    with pytest.raises(CheckFailed, match="its RECORD changed"):
        installed.files_equal_lock(image)


def test_a_file_that_the_build_took_out_is_counted_and_any_other_is_still_missed(
    build: Callable[..., BuildInfo], package: Path, tmp_path: Path
) -> None:
    (package / "brick.py").unlink()
    text = json.dumps({"rules": [{"what": "clay", "files": ["brick.py"]}]})
    (tmp_path / "trimmed.json").write_text(text, encoding="utf-8")
    noted = {"file": "trimmed.json", "sha256": hashlib.sha256(text.encode()).hexdigest()}
    records = {"brick": record_hash(package)}
    told = installed.files_equal_lock(build(records=records, trimmed=noted))
    assert told == "0 files of 1 packages; 1 others were taken out by the build"
    with pytest.raises(CheckFailed, match="brick.py is missing"):
        installed.files_equal_lock(build(records=records))
    # A list that somebody lengthened later is no excuse.
    (tmp_path / "trimmed.json").write_text(text + " ", encoding="utf-8")
    with pytest.raises(CheckFailed, match=r"trimmed\.json: changed after the build"):
        installed.files_equal_lock(build(records=records, trimmed=noted))
    (tmp_path / "trimmed.json").unlink()
    with pytest.raises(CheckFailed, match=r"trimmed\.json: is missing"):
        installed.files_equal_lock(build(records=records, trimmed=noted))


def test_a_file_that_is_there_is_compared_even_if_the_list_has_it(
    build: Callable[..., BuildInfo], package: Path, tmp_path: Path
) -> None:
    text = json.dumps({"rules": [{"files": ["brick.py"]}]})
    (tmp_path / "trimmed.json").write_text(text, encoding="utf-8")
    noted = {"file": "trimmed.json", "sha256": hashlib.sha256(text.encode()).hexdigest()}
    (package / "brick.py").write_text("print('sand')\n", encoding="utf-8")
    with pytest.raises(CheckFailed, match="brick.py changed"):
        installed.files_equal_lock(build(records={"brick": record_hash(package)}, trimmed=noted))


def test_a_refused_package_fails_by_name(
    build: Callable[..., BuildInfo], package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = build(refused_packages=["nvidia-*", "cuda-*"])
    assert "none of nvidia-*" in installed.no_refused_packages(image)
    info = package / "brick-1.0.dist-info"
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: nvidia_cudnn_cu12\nVersion: 1.0\n", encoding="utf-8"
    )
    # It lies beside the environment, where a base image has its own: that is the vendor's business.
    assert "none of nvidia-*" in installed.no_refused_packages(image)
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(package))
    with pytest.raises(CheckFailed, match="nvidia-cudnn-cu12"):
        installed.no_refused_packages(image)
    with pytest.raises(Skipped, match="refuses no packages"):
        installed.no_refused_packages(build())


@pytest.mark.parametrize("field", ["version", "cuda", "hip"])
def test_a_torch_of_another_version_or_build_fails(build: Callable[..., BuildInfo], field: str) -> None:
    assert "version" in installed.torch_is_expected(build())
    wanted = build_content()["torch"] | {field: "9.9"}
    with pytest.raises(CheckFailed, match=f"{field} is .*, 9.9 is expected"):
        installed.torch_is_expected(build(torch=wanted))


def test_a_label_of_torch_s_own_is_no_other_version_but_the_lock_s_label_must_be_there(
    build: Callable[..., BuildInfo],
) -> None:
    """The registry's 2.10.0 says 2.10.0+cu128, and on aarch64 2.10.0+cpu; the lock has no label."""
    import torch

    plain = torch.__version__.partition("+")[0]
    own = build_content()["torch"]
    assert plain in installed.torch_is_expected(build(torch=own | {"version": plain, "by_architecture": {}}))
    with pytest.raises(CheckFailed, match=r"version is .*, .*\+other is expected"):
        installed.torch_is_expected(build(torch=own | {"version": f"{plain}+other", "by_architecture": {}}))


def test_without_a_build_the_lock_checks_are_skipped_not_passed() -> None:
    for check in (
        installed.versions_equal_lock,
        installed.files_equal_lock,
        installed.no_refused_packages,
        installed.torch_is_expected,
    ):
        with pytest.raises(Skipped, match=r"there is no build-info.json"):
            check(None)
