"""`--platform`: an image for one or both architectures, refused in words where engine or spec has it not."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from build_command import BuildCommand

from images.engine import BuildRequest, connect
from images.errors import EXIT_CONFIG, EXIT_UNAVAILABLE, EXIT_USAGE, UserError
from images.platforms import chosen, read_platforms
from images.specfile import load_specs

SPECS = load_specs()
BOTH = ["linux/amd64", "linux/arm64"]
# Recorded: `docker buildx inspect` of Docker 28.5 before and after QEMU was registered.
PLAIN = "Name:  default\nPlatforms:        linux/amd64, linux/amd64/v2, linux/amd64/v3\nLabels:\n"
EMULATING = (
    "BuildKit version: v0.0.0\nPlatforms:        linux/amd64, linux/amd64/v2, linux/arm64*, linux/386\n"
)


def test_the_engine_s_words_are_read() -> None:
    assert read_platforms(PLAIN) == ["linux/amd64"]
    assert read_platforms(EMULATING) == BOTH
    assert read_platforms("ERROR: no builder") == []


def test_nothing_asked_is_the_engine_s_own_and_both_are_built_in_one_order() -> None:
    assert chosen(SPECS["cpu"], [], ["linux/arm64", "linux/amd64"]) == ["linux/arm64"]
    assert chosen(SPECS["cpu"], ["linux/arm64", "linux/amd64", "linux/arm64"], BOTH) == BOTH


REFUSED = [
    ("cpu", ["linux/riscv64"], BOTH, "--platform: linux/riscv64: not known", BOTH[0], EXIT_USAGE),
    ("cuda", BOTH, BOTH, "--platform linux/arm64: cuda is for x86_64", BOTH[0], EXIT_CONFIG),
    ("cuda", [], BOTH[1:], "engine: it is aarch64, cuda is for x86_64", "use an engine", EXIT_CONFIG),
    ("cuda", [], BOTH[::-1], "engine: it is aarch64, cuda is", "amd64, which it emulates", EXIT_CONFIG),
    ("cpu", BOTH, BOTH[:1], "cannot run linux/arm64, only linux/amd64", "register QEMU", EXIT_UNAVAILABLE),
]


@pytest.mark.parametrize(("image", "asked", "runs", "message", "hint", "code"), REFUSED)
def test_what_cannot_be_built_is_refused_with_a_way_on(
    image: str, asked: list[str], runs: list[str], message: str, hint: str, code: int
) -> None:
    with pytest.raises(UserError) as caught:
        chosen(SPECS[image], asked, runs)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.exit_code == code


@pytest.mark.engine
def test_an_unknown_platform_is_refused_before_anything_is_built(
    build_options: list[str], build_py: BuildCommand
) -> None:
    done = build_py(*build_options, "--platform=linux/riscv64", "--tag=isotune-test:none")
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
    assert "error: --platform: linux/riscv64: not known here" in done.stderr


@pytest.mark.engine
def test_both_platforms_come_into_one_tag_and_one_layout(build_options: list[str], tmp_path: Path) -> None:
    """A file of each architecture by COPY alone: the engine needs no emulation for that."""
    engine = connect()
    context = tmp_path / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(
        "FROM scratch\nARG TARGETARCH\nCOPY $TARGETARCH /machine\n", encoding="utf-8"
    )
    for name in ("amd64", "arm64"):
        (context / name).write_text(name, encoding="utf-8")
    tag = "isotune-test:platforms"

    def build(output: Path | None) -> str:
        metadata = tmp_path / "metadata.json"
        request = BuildRequest(context / "Dockerfile", context, {}, metadata, [tag], output, platforms=BOTH)
        return engine.build(request)

    try:
        digest = build(None)
        assert build(tmp_path / "layout") == digest
        shown = subprocess.run(
            ["docker", "image", "inspect", "--format={{json .Id}}", tag], capture_output=True, check=True
        )
        assert json.loads(shown.stdout) == digest
        blob = tmp_path / "layout/blobs" / digest.replace(":", "/")
        found = json.loads(blob.read_text(encoding="utf-8"))["manifests"]
        assert [item["platform"]["architecture"] for item in found] == ["amd64", "arm64"]
    finally:
        subprocess.run(["docker", "image", "rm", "-f", tag], capture_output=True, check=False)
