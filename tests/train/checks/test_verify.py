"""Verify: every check passes on a sound environment, and fails on the fault that it is there for."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from build_infos import build_content

from train.checks import verify
from train.checks.report import CheckFailed, Report, Skipped
from train.image import VARIABLE, BuildInfo

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def test_the_network_check_sees_an_attempt_and_passes_without_one() -> None:
    attempts = verify.watch_network()
    assert "no attempt" in verify.nothing_connected(attempts)
    with pytest.raises(OSError), socket.socket() as outward:
        outward.settimeout(0.2)
        outward.connect(("127.0.0.1", 9))
    with pytest.raises(CheckFailed, match="127.0.0.1"):
        verify.nothing_connected(attempts)


def test_a_vendor_plugin_is_hidden_from_import_while_the_checks_run(
    build: Callable[..., BuildInfo], package: Path
) -> None:
    import importlib.util

    (package / "brick.py").write_text(
        "raise ImportError('libdriver.so: cannot open shared object file')\n", encoding="utf-8"
    )
    image = build(plugin={"distribution": "brick", "module": "brick", "version": "1.0"})
    with verify.hidden_plugin(image):
        assert importlib.util.find_spec("brick") is None
        assert os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
        with pytest.raises(ModuleNotFoundError, match="hidden"):
            __import__("brick")
    assert importlib.util.find_spec("brick") is not None
    with pytest.raises(ImportError, match="libdriver"):
        __import__("brick")


@pytest.mark.parametrize(("import_at_build", "status"), [(False, "skipped"), (True, "failed")])
def test_a_torch_that_needs_its_driver_is_skipped_only_where_the_spec_says_so(
    build: Callable[..., BuildInfo], monkeypatch: pytest.MonkeyPatch, import_at_build: bool, status: str
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    report = Report("cpu")
    report.check("build", "torch", lambda: verify.importable(build(import_at_build=import_at_build)))
    assert report.results[0].status == status
    assert "torch cannot be imported" in report.results[0].detail


def test_one_failure_stops_no_other_check_and_sets_the_exit_code() -> None:
    report = Report("cpu")

    def crash() -> str:
        raise ZeroDivisionError("by zero")

    def skip() -> str:
        raise Skipped("no device")

    for name, check in (("crash", crash), ("skip", skip), ("good", lambda: "fine")):
        report.check("build", name, check)
    assert [result.status for result in report.results] == ["failed", "skipped", "passed"]
    assert report.exit_code == 1
    assert report.as_dict()["status"] == "failed"


def test_a_report_of_nothing_but_skips_does_not_say_passed() -> None:
    report = Report("cpu")

    def skip() -> str:
        raise Skipped("no device")

    report.check("device", "seen", skip)
    assert (report.as_dict()["status"], report.exit_code) == ("skipped", 0)


def test_the_command_prints_json_and_exits_by_its_result(train_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "build-info.json"
    content = build_content(
        packages={"pydantic": "0.1"}, refused_packages=["nvidia-*"], records={"pydantic": "0" * 64}
    )
    path.write_text(json.dumps(content), encoding="utf-8")
    done = train_command("verify", "--build", "--json", **{VARIABLE: str(path)})
    report = json.loads(done.stdout)
    statuses = {check["name"]: check["status"] for check in report["checks"]}
    assert done.returncode == 1, done.stderr
    assert statuses.pop("versions") == "failed"
    assert statuses.pop("files") == "failed"
    assert set(statuses.values()) == {"passed"}, report


def test_a_broken_build_info_is_named(train_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "build-info.json"
    for content in ("{", "{}", json.dumps({**build_content(), "schema": 2})):
        path.write_text(content, encoding="utf-8")
        done = train_command("verify", "--build", **{VARIABLE: str(path)})
        assert done.returncode == 78
        assert f"error: {path}: is not a build info" in done.stderr
    done = train_command("verify", **{VARIABLE: str(tmp_path / "none.json")})
    assert (done.returncode, "does not exist" in done.stderr) == (78, True)


def test_build_info_fields_cover_what_is_read() -> None:
    assert {field.name for field in dataclasses.fields(BuildInfo)} - {"path", "content"} <= set(
        build_content()
    )
