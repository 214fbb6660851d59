"""Verify: every check passes on a sound environment, and fails on the fault that it is there for."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from train.checks import installed, training, verify
from train.checks.report import CheckFailed, Report, Skipped
from train.image import VARIABLE, BuildInfo, read_build_info

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def build_content(**fields: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "backend": "cpu",
        "device_type": "cpu",
        "torch": {"version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip},
        "plugin": None,
        "packages": {"pydantic": metadata.version("pydantic")},
        "provided": {},
        "records": {},
        "refused_packages": [],
        "import_at_build": True,
        "device_policy": {"precision": ["fp32"], "attention": ["sdpa", "eager"], "pinned_memory": False},
        **fields,
    }


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., BuildInfo]:
    """Write a build-info.json with these fields and read it as `train` does."""

    def make(**fields: Any) -> BuildInfo:
        path = tmp_path / "build-info.json"
        path.write_text(json.dumps(build_content(**fields)), encoding="utf-8")
        monkeypatch.setenv(VARIABLE, str(path))
        image = read_build_info()
        assert image is not None
        return image

    return make


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed distribution `brick` 1.0 with one file, findable by importlib.metadata."""
    site = tmp_path / "site"
    info = site / "brick-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "brick.py").write_text("print('clay')\n", encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brick\nVersion: 1.0\n", encoding="utf-8")
    digest = (
        base64.urlsafe_b64encode(hashlib.sha256((site / "brick.py").read_bytes()).digest())
        .rstrip(b"=")
        .decode()
    )
    record = f"brick.py,sha256={digest},14\nbrick-1.0.dist-info/METADATA,,\nbrick-1.0.dist-info/RECORD,,\n"
    (info / "RECORD").write_text(record, encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    return site


def record_hash(site: Path) -> str:
    return hashlib.sha256((site / "brick-1.0.dist-info" / "RECORD").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder in which both adapters were trained by the check itself."""
    made = training.Bench(tmp_path_factory.mktemp("bench"))
    training.trains(made, "lora")
    training.trains(made, "oft")
    return made


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


def test_a_refused_package_fails_by_name(build: Callable[..., BuildInfo], package: Path) -> None:
    image = build(refused_packages=["nvidia-*", "cuda-*"])
    assert "none of nvidia-*" in installed.no_refused_packages(image)
    info = package / "brick-1.0.dist-info"
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: nvidia_cudnn_cu12\nVersion: 1.0\n", encoding="utf-8"
    )
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


def test_without_a_build_the_lock_checks_are_skipped_not_passed() -> None:
    for check in (
        installed.versions_equal_lock,
        installed.files_equal_lock,
        installed.no_refused_packages,
        installed.torch_is_expected,
    ):
        with pytest.raises(Skipped, match=r"there is no build-info.json"):
            check(None)


@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_training_fails_where_the_loss_does_not_fall(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adapter: str
) -> None:
    from train.loop import trainer

    original = trainer.RunTrainer.compute_loss

    def climbing(self: Any, *arguments: Any, **named: Any) -> torch.Tensor:
        loss = original(self, *arguments, **named)
        return 2 * loss.detach() - loss  # the same value, the opposite gradient

    monkeypatch.setattr(trainer.RunTrainer, "compute_loss", climbing)
    with pytest.raises(CheckFailed, match="the loss did not fall"):
        training.trains(training.Bench(tmp_path), adapter)


@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_training_fails_where_the_saved_adapter_is_not_the_trained_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, adapter: str
) -> None:
    from train.loop import run as run_module

    original = run_module.save_adapter

    def save_halved(prepared: Any, folder: Path) -> None:
        original(prepared, folder)
        path = folder / "adapter_model.safetensors"
        save_file(
            {name: tensor / 2 for name, tensor in load_file(path).items()}, path, metadata={"format": "pt"}
        )

    monkeypatch.setattr(run_module, "save_adapter", save_halved)
    with pytest.raises(CheckFailed, match="trained and saved: logits differ"):
        training.trains(training.Bench(tmp_path), adapter)


@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_reloading_passes_and_fails_where_the_adapter_does_nothing(
    bench: Any, tmp_path: Path, adapter: str
) -> None:
    assert "merged and reloaded" in training.reloads_and_merges(bench, adapter)
    import shutil

    other = training.Bench(Path(shutil.copytree(bench.folder, tmp_path / "copy")))
    path = other.adapter(adapter) / "adapter_model.safetensors"
    save_file(
        {name: torch.zeros_like(tensor) for name, tensor in load_file(path).items()},
        path,
        metadata={"format": "pt"},
    )
    with pytest.raises(CheckFailed, match="does nothing"):
        training.reloads_and_merges(other, adapter)


@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_reloading_fails_where_merging_is_wrong(
    bench: Any, monkeypatch: pytest.MonkeyPatch, adapter: str
) -> None:
    from peft.tuners.tuners_utils import BaseTuner

    original = BaseTuner.merge_and_unload

    def wrong(self: Any, *arguments: Any, **named: Any) -> Any:
        merged = original(self, *arguments, **named)
        merged.model.layers[0].mlp.down_proj.weight.data.mul_(1.1)
        return merged

    monkeypatch.setattr(BaseTuner, "merge_and_unload", wrong)
    with pytest.raises(CheckFailed, match="merged, saved and loaded: logits differ"):
        training.reloads_and_merges(bench, adapter)


def test_reloading_fails_by_word_where_training_made_no_adapter(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match="there is no adapter"):
        training.reloads_and_merges(training.Bench(tmp_path), "lora")


def test_rotations_pass_and_fail_where_they_are_not_orthogonal(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peft.tuners.oft.layer import OFTRotationModule

    assert "R R^T" in training.rotations_are_orthogonal(bench)
    original = OFTRotationModule._cayley_batch
    monkeypatch.setattr(
        OFTRotationModule, "_cayley_batch", lambda self, *a, **k: 1.01 * original(self, *a, **k)
    )
    with pytest.raises(CheckFailed, match=r"R R\^T"):
        training.rotations_are_orthogonal(bench)


def test_packing_passes_and_fails_where_attention_leaks(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "equal their own" in training.packing_keeps_samples_apart(bench)
    original = training.Bench.base

    def leaking(self: Any) -> Any:
        model = original(self)
        forward = model.forward

        def with_ones_mask(input_ids: torch.Tensor, **named: Any) -> Any:
            return forward(input_ids=input_ids, attention_mask=torch.ones_like(input_ids), **named)

        model.forward = with_ones_mask
        return model

    monkeypatch.setattr(training.Bench, "base", leaking)
    with pytest.raises(CheckFailed, match="attention leaks"):
        training.packing_keeps_samples_apart(bench)


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


def test_an_absent_device_is_skipped_never_passed(build: Callable[..., BuildInfo]) -> None:
    with pytest.raises(Skipped, match="no device: torch finds no npu here"):
        verify.device_is_seen(build(device_type="npu"))
    with pytest.raises(Skipped, match="no device"):
        verify.device_is_seen(build())


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
    report.check("device", "seen", lambda: verify.device_is_seen(None))
    assert (report.as_dict()["status"], report.exit_code) == ("skipped", 0)


def test_the_command_prints_json_and_exits_by_its_result(train_command: Command, tmp_path: Path) -> None:
    path = tmp_path / "build-info.json"
    path.write_text(
        json.dumps(build_content(packages={"pydantic": "0.1"}, refused_packages=["nvidia-*"])),
        encoding="utf-8",
    )
    done = train_command("verify", "--build", "--json", **{VARIABLE: str(path)})
    report = json.loads(done.stdout)
    statuses = {check["name"]: check["status"] for check in report["checks"]}
    assert done.returncode == 1, done.stderr
    assert statuses.pop("versions") == "failed"
    assert statuses.pop("files") == "skipped"
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
