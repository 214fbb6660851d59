"""Mirrors, indexes and certificates: what a build is told, and by which way."""

from __future__ import annotations

from pathlib import Path

import pytest

from images.errors import UserError
from images.sources import Sources, base_address, check_sources, mirrored, parse_mirrors
from images.specfile import load_specs

INDEX = "https://download.pytorch.org/whl/cpu"


def test_without_options_the_torch_index_of_the_spec_is_all_that_pip_is_told() -> None:
    assert Sources().pip_settings(load_specs()["cpu"]) == f"[global]\nextra-index-url =\n    {INDEX}\n"
    assert Sources().pip_settings(load_specs()["cuda"]) == ""


def test_a_wheelhouse_with_the_wheel_makes_the_torch_index_needless(tmp_path: Path) -> None:
    sources = Sources(wheelhouse=tmp_path)
    assert INDEX in sources.pip_settings(load_specs()["cpu"])
    (tmp_path / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl").touch()
    assert sources.pip_settings(load_specs()["cpu"], ["x86_64"]) == ""
    assert INDEX in sources.pip_settings(load_specs()["cpu"], ["aarch64"])
    assert INDEX in sources.pip_settings(load_specs()["cpu"])


def test_an_architecture_whose_torch_is_on_the_usual_index_asks_no_other() -> None:
    """Where the other cannot be reached, pip waits for it with every package of the lock."""
    ascend = load_specs()["ascend"]
    assert Sources().pip_settings(ascend, ["aarch64"]) == ""
    for built in (["x86_64"], ["aarch64", "x86_64"], []):
        assert INDEX in Sources().pip_settings(ascend, built)


def test_given_indexes_come_first_and_through_the_mirrors(tmp_path: Path) -> None:
    sources = Sources(
        index_url="https://index.example.org/simple",
        extra_index_urls=["https://extra.example.org/simple"],
        mirrors=parse_mirrors(
            ["download.pytorch.org=mirror.example.org/pytorch", "extra.example.org=near:8080"]
        ),
    )
    assert sources.pip_settings(load_specs()["cpu"]).splitlines() == [
        "[global]",
        "index-url = https://index.example.org/simple",
        "extra-index-url =",
        "    https://near:8080/simple",
        "    https://mirror.example.org/pytorch/whl/cpu",
    ]


def test_addresses_are_written_for_the_owner_alone(tmp_path: Path) -> None:
    secrets = Sources(index_url="https://user:word@index.example.org").secrets(load_specs()["cuda"], tmp_path)
    assert list(secrets) == ["pip"]
    assert secrets["pip"].stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("name", "mirror", "address"),
    [
        ("cpu", "docker.io=m.example.org", "m.example.org/library/python:3.11-slim-bookworm@sha256:a36c24"),
        (
            "cuda",
            "docker.io=m.example.org",
            "m.example.org/nvidia/cuda:12.8.1-base-ubuntu24.04@sha256:133c78",
        ),
        ("cuda", "quay.io=m.example.org", "nvidia/cuda:12.8.1-base-ubuntu24.04@sha256:133c78"),
        ("ascend", "quay.io=m.example.org/q", "m.example.org/q/ascend/cann:9.1.0-910b-ubuntu22.04-py3.11"),
        ("hygon", "harbor.sourcefind.cn:5443=m.example.org", "m.example.org/dcu/admin/base/pytorch:2.7.1-"),
    ],
)
def test_a_mirror_replaces_the_registry_and_keeps_the_digest(name: str, mirror: str, address: str) -> None:
    assert base_address(load_specs()[name], None, parse_mirrors([mirror])).startswith(address)


def test_another_base_image_is_taken_as_given() -> None:
    assert base_address(load_specs()["cpu"], "mine:1", parse_mirrors(["docker.io=m.example.org"])) == "mine:1"


def test_a_url_keeps_its_scheme_and_path() -> None:
    assert mirrored("http://a.example.org/x/y", {"a.example.org": "b"}) == "http://b/x/y"


def test_every_wrong_mirror_is_named() -> None:
    with pytest.raises(UserError) as caught:
        parse_mirrors(["docker.io", "a=b", "=b", "https://a=b"])
    assert len(caught.value.message.splitlines()) == 3


def test_every_wrong_path_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate", encoding="utf-8")
    with pytest.raises(UserError) as caught:
        check_sources(Sources(wheelhouse=tmp_path, ca_bundle=tmp_path / "ca.pem"))
    assert [line.split(":")[0] for line in caught.value.message.splitlines()] == [
        "--wheelhouse",
        "--ca-bundle",
    ]
