"""`build.py reproduce`: two cold builds are compared; the build itself is a layout made by hand here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from build_command import BuildCommand
from made_layout import FILES, changed, layer, write_layout

from images import reproduce
from images.build import BuildOptions
from images.errors import UserError
from images.spec import BackendSpec
from images.specfile import load_specs


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[BuildOptions]]:
    """Let each build write the next of some layers; what was asked of the builds is returned."""

    def prepare(*layers: bytes) -> list[BuildOptions]:
        asked: list[BuildOptions] = []

        def build(spec: BackendSpec, options: BuildOptions) -> str:
            asked.append(options)
            assert options.output
            return write_layout(options.output, [layers[len(asked) - 1]])

        monkeypatch.setattr(reproduce, "build", build)
        return asked

    return prepare


@pytest.fixture
def cpu() -> BackendSpec:
    return load_specs()["cpu"]


def test_two_equal_cold_builds_are_one_digest(
    builds: Callable[..., list[BuildOptions]], cpu: BackendSpec, tmp_path: Path
) -> None:
    asked = builds(layer(FILES), layer(FILES))
    digest = write_layout(tmp_path / "expected", [layer(FILES)])
    options = BuildOptions(network="host")
    assert reproduce.reproduce(cpu, options, None, None) == f"cpu: two cold builds give {digest}"
    assert [(item.no_cache, item.network) for item in asked] == [(True, "host")] * 2
    assert asked[0].output != asked[1].output
    assert not any(item.output and item.output.exists() for item in asked)


def test_every_difference_is_printed_and_the_check_fails(
    builds: Callable[..., list[BuildOptions]],
    cpu: BackendSpec,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    builds(layer(FILES), layer({**changed("opt/a", mode=0o600), "opt/z": {}}))
    with pytest.raises(UserError) as caught:
        reproduce.reproduce(cpu, BuildOptions(), None, tmp_path / "kept")
    assert caught.value.exit_code == 1
    assert caught.value.message.endswith(": 2 differing, in 1 layers or places")
    where = "layer 1 (make the files)"
    assert capsys.readouterr().out.splitlines() == [
        f"{where}: opt/a: mode: 0644, 0600",
        f"{where}: opt/z: only in the second",
    ]
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["first", "second"]


def test_one_build_is_compared_with_what_somebody_else_built(
    builds: Callable[..., list[BuildOptions]],
    cpu: BackendSpec,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    digest = write_layout(tmp_path / "theirs", [layer(FILES)])
    for against in (digest, f"oci:{tmp_path / 'theirs'}"):
        asked = builds(layer(FILES))
        assert reproduce.reproduce(cpu, BuildOptions(), against, None) == f"cpu: a cold build gives {digest}"
        assert len(asked) == 1
    builds(layer(changed("opt/a", mode=0o600)))
    with pytest.raises(UserError) as caught:
        reproduce.reproduce(cpu, BuildOptions(), f"oci:{tmp_path / 'theirs'}", None)
    assert "opt/a: mode" in capsys.readouterr().out
    builds(layer(changed("opt/a", mode=0o600)))
    with pytest.raises(UserError) as caught:
        reproduce.reproduce(cpu, BuildOptions(), digest, None)
    assert "--against oci:PATH compares file by file" in caught.value.hint


def test_a_layout_that_is_none_is_told_before_anything_is_built(
    builds: Callable[..., list[BuildOptions]], cpu: BackendSpec, tmp_path: Path
) -> None:
    asked = builds()
    with pytest.raises(UserError) as caught:
        reproduce.reproduce(cpu, BuildOptions(), f"oci:{tmp_path}", None)
    assert caught.value.exit_code == 65
    assert asked == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--backend=cpu", "--push", "--tag=a:1"], "--tag, --push: has no effect here"),
        ([], "--backend is missing"),
        (["--backend=cpu", "--against=a:1"], "--against: 'a:1' is neither sha256:DIGEST nor oci:PATH"),
        (["--backend=cpu", "--keep=images"], "--keep: images exists already"),
        (["--backend=cpu", "--network=none"], "--network none: there is no --wheelhouse"),
    ],
)
def test_wrong_options_are_told_before_anything_is_built(
    build_py: BuildCommand, options: list[str], told: str
) -> None:
    done = build_py("reproduce", *options, DOCKER_HOST="unix:///nowhere/docker.sock")
    assert (done.returncode, done.stdout) == (64, "")
    assert told in done.stderr


def test_without_an_engine_the_way_on_is_told(build_py: BuildCommand) -> None:
    done = build_py("reproduce", "--backend=cpu", DOCKER_HOST="unix:///nowhere/docker.sock")
    assert done.returncode == 69
    assert "no Docker Engine answers" in done.stderr
