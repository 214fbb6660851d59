"""`lock --resolve-base` writes what a registry says into the spec, and never over what a person wrote there.

The registry's answer comes from a stand-in for the `docker` program: it prints what imagetools would.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml
from build_command import BuildCommand

from images.basedigest import write_base
from images.errors import UserError
from images.specfile import BACKENDS, load_specs, read_spec

FOUND = f"sha256:{'1' * 64}"
ANSWER = json.dumps({"schemaVersion": 2, "digest": FOUND, "size": 855})


@pytest.fixture
def answers(tmp_path: Path) -> dict[str, str]:
    """An environment whose `docker` notes its arguments and prints a digest."""
    program = tmp_path / "bin/docker"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho \"$@\" >{tmp_path}/asked\necho '{ANSWER}'\n", encoding="utf-8")
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}"}


def changed_lines(build: BuildCommand, name: str) -> list[str]:
    new = (build.tree / f"images/backends/{name}.yaml").read_text(encoding="utf-8").splitlines()
    old = (BACKENDS / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    assert len(new) == len(old)
    return [line.strip() for line, before in zip(new, old, strict=True) if line != before]


def resolve(build: BuildCommand, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run as far as the spec: an index out of reach ends it there, so the test needs no network."""
    return build("lock", *options, "--resolve-base", "--index-url=http://127.0.0.1:9/simple", **environment)


@pytest.mark.parametrize("variant", [[], ["--variant=a3"]])
def test_an_unresolved_digest_is_filled_in_where_it_stands(
    tree_build_py: BuildCommand, answers: dict[str, str], tmp_path: Path, variant: list[str]
) -> None:
    resolve(tree_build_py, "--backend=ascend", *variant, "--mirror=quay.io=m.example.org/q", **answers)
    digest, source, confidence = changed_lines(tree_build_py, "ascend")
    assert (digest, confidence) == (f"digest: {FOUND}", "confidence: P")
    assert source.startswith("source: the registry's answer on 20")
    specs, faults = read_spec(tree_build_py.tree / "images/backends/ascend.yaml")
    assert faults == []
    assert [spec.base.digest == FOUND for spec in specs] == [not variant, bool(variant)]
    chip = "a3" if variant else "910b"
    asked = (tmp_path / "asked").read_text(encoding="utf-8").split()
    assert asked[-1] == f"m.example.org/q/ascend/cann:9.1.0-{chip}-ubuntu22.04-py3.11"


def test_a_tag_that_has_moved_is_told_and_nothing_is_written(
    tree_build_py: BuildCommand, answers: dict[str, str]
) -> None:
    done = resolve(tree_build_py, "--backend=cuda", **answers)
    assert done.returncode == 65
    assert (
        f"the registry has {FOUND} as nvidia/cuda:12.8.1-base-ubuntu24.04, the spec sha256:133c78"
        in done.stderr
    )
    assert changed_lines(tree_build_py, "cuda") == []


def test_a_registry_that_does_not_answer_is_told_with_its_words(
    tree_build_py: BuildCommand, answers: dict[str, str]
) -> None:
    program = Path(answers["PATH"].partition(":")[0]) / "docker"
    program.write_text("#!/bin/sh\necho 'ERROR: no such host' >&2\nexit 1\n", encoding="utf-8")
    done = resolve(tree_build_py, "--backend=ascend", **answers)
    assert done.returncode == 69
    assert done.stderr.startswith(
        "error: base: quay.io/ascend/cann:9.1.0-910b-ubuntu22.04-py3.11: ERROR: no such host\n"
    )
    assert changed_lines(tree_build_py, "ascend") == []


def test_a_base_without_the_key_to_fill_in_is_told(tmp_path: Path) -> None:
    path = tmp_path / "cpu.yaml"
    path.write_text("name: cpu\nbase:\n  digest: unresolved\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"cpu.yaml:3: base of cpu: has no source"):
        write_base(path, load_specs()["cpu"], {"digest": FOUND, "source": "x"})
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["base"] == {"digest": "unresolved"}
