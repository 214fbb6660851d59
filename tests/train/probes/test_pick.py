"""Candidates are tried in order, each failure is told, and outcomes are kept for the same device."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from train.errors import EXIT_UNAVAILABLE, UserError
from train.probes import kept
from train.probes.outcome import Outcome
from train.probes.pick import Probes

GOOD = Outcome("precision fp16", True, {"product": 4e-4}, 1e-2)
BAD = Outcome("precision bf16", False, {"product": 0.5}, 6e-2)
FAULT = Outcome("precision bf16", False, fault="RuntimeError: no kernel")


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Probes]:
    """Probes of a device that this machine does not have, with a cache of its own."""
    monkeypatch.setenv("ISOTUNE_CACHE", str(tmp_path / "cache"))

    def make(mode: str = "auto", name: str = "Card 1") -> Probes:
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: name)
        return Probes(torch.device("cuda", 0), mode)

    return make


def outcomes(probes: Probes, *found: Outcome) -> tuple[str, str]:
    by_name = {one.probe.split()[1]: one for one in found}
    return probes.first(
        "precision",
        list(by_name),
        "first of the policy",
        lambda name: probes.outcome(f"precision {name}", lambda: by_name[name]),
    )


def test_the_first_that_passes_is_taken_with_its_figures(device: Callable[..., Probes]) -> None:
    assert outcomes(device(), GOOD, BAD) == (
        "fp16",
        "first of the policy; product 4e-04 apart, 1e-02 is allowed",
    )


def test_what_failed_before_it_is_told_and_recorded(device: Callable[..., Probes]) -> None:
    probes = device()
    value, reason = outcomes(probes, BAD, GOOD)
    assert value == "fp16"
    assert "bf16 fails its probe: product 5e-01 apart, 6e-02 is allowed; product 4e-04" in reason
    assert probes.outcomes == [BAD, GOOD]


def test_where_nothing_passes_every_figure_is_in_the_error(device: Callable[..., Probes]) -> None:
    with pytest.raises(UserError) as caught:
        outcomes(device(), BAD, Outcome("precision fp32", False, fault="RuntimeError: no memory"))
    assert caught.value.exit_code == EXIT_UNAVAILABLE
    assert caught.value.message.splitlines() == [
        "precision: on cuda:0: bf16 fails its probe: product 5e-01 apart, 6e-02 is allowed",
        "precision: on cuda:0: fp32 fails its probe: RuntimeError: no memory",
    ]
    assert "probe=off" in caught.value.hint


def test_with_the_probe_off_the_first_is_taken_unproved_and_it_says_so(device: Callable[..., Probes]) -> None:
    probes = device("off")
    assert outcomes(probes, BAD, GOOD) == ("bf16", "first of the policy; probe is off")
    assert (probes.outcomes, probes.path) == ([], None)


def never() -> Outcome:
    raise AssertionError("the probe ran again")


def test_a_second_run_on_the_same_device_measures_nothing(device: Callable[..., Probes]) -> None:
    outcomes(device(), BAD, GOOD)
    again = device()
    assert again.outcome("precision bf16", never) == replace(BAD, kept=True)
    assert again.outcome("precision fp16", never) == replace(GOOD, kept=True)
    assert again.outcomes == [replace(BAD, kept=True), replace(GOOD, kept=True)]


@pytest.mark.parametrize("change", ["device", "boot", "torch", "setting", "code"])
def test_another_device_driver_version_setting_or_probe_measures_anew(
    device: Callable[..., Probes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: str
) -> None:
    outcomes(device(), BAD, GOOD)
    if change == "boot":
        (tmp_path / "boot").write_text("another")
        monkeypatch.setattr(kept, "BOOT", tmp_path / "boot")
    if change == "torch":
        monkeypatch.setattr(torch.version, "git_version", "another")
    if change == "setting":
        monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:other")
    if change == "code":
        monkeypatch.setattr(kept, "__file__", str(tmp_path / "kept.py"))
    assert device(name="Card 2" if change == "device" else "Card 1").known == {}


def test_again_measures_anew_and_keeps_what_it_finds(device: Callable[..., Probes]) -> None:
    outcomes(device(), BAD, GOOD)
    better = Outcome("precision bf16", True, {"product": 1e-3}, 6e-2)
    assert outcomes(device("again"), better)[0] == "bf16"
    assert device().known["precision bf16"] == replace(better, kept=True)


def test_a_fault_may_be_of_the_moment_and_is_not_kept(device: Callable[..., Probes]) -> None:
    outcomes(device(), FAULT, GOOD)
    assert device().known == {"precision fp16": replace(GOOD, kept=True)}


@pytest.mark.parametrize(
    "damage", ["{", "[]", '{"precision bf16": {"passed": true}}', '{"precision bf16": 1}']
)
def test_a_damaged_file_holds_nothing_and_is_made_anew(device: Callable[..., Probes], damage: str) -> None:
    outcomes(device(), BAD, GOOD)
    path = device().path
    assert path is not None
    path.write_text(damage)
    assert device().known == {}
    outcomes(device(), BAD, GOOD)
    assert json.loads(path.read_text()).keys() == {"precision bf16", "precision fp16"}
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_a_cache_that_cannot_be_written_costs_no_run(
    device: Callable[..., Probes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ISOTUNE_CACHE", str(tmp_path / "file" / "cache"))
    assert outcomes(device(), BAD, GOOD)[0] == "fp16"

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setenv("ISOTUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept.tempfile, "NamedTemporaryFile", full)
    assert outcomes(device(), BAD, GOOD)[0] == "fp16"
