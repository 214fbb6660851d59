"""`build.py lint`: each rule is broken on purpose and told with its line; what only looks like one is not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from build_command import ROOT, BuildCommand

from images.launch.rules import RULES as MANIFEST_RULES
from images.lint import RULES, lint
from images.lint_locks import check_lock, check_requirements, check_stack
from images.lint_rendered import check_constraints, check_dockerfile, check_script

DIGEST = "sha256:" + "a" * 64
HASH = f"--hash=sha256:{'b' * 64}"
GOOD = f"FROM debian:12@{DIGEST}\nRUN true\nUSER 1000:0\n"

# (rule, Dockerfile, line)
BAD_DOCKERFILES = [
    ("base-digest", "FROM debian:12\nUSER 1000\n", 1),
    ("base-digest", "ARG B=debian:12\n\nFROM ${B} AS one\nUSER 1000\n", 3),
    ("base-digest", f"{GOOD}COPY --from=debian:12 /a /b\n", 4),
    ("base-digest", f"{GOOD}RUN --mount=type=bind,from=debian:12,target=/a true\n", 4),
    ("no-latest", f"{GOOD}COPY --from=debian:latest@{DIGEST} /a /b\nFROM debian:latest\nUSER 1000\n", 5),
    ("no-latest", "FROM --platform=linux/amd64 debian\nUSER 1000\n", 1),
    ("no-root", f"FROM debian:12@{DIGEST}\nUSER 1000\nFROM debian:12@{DIGEST}\n", 3),
    ("no-root", f"{GOOD}USER root\n", 4),
    ("no-root", f"{GOOD}USER 0:0\n", 4),
    ("secret", f"{GOOD}ENV A=1 \\\n    # why\n    HF_TOKEN=x\n", 6),
    ("secret", f"{GOOD}ARG DB_PASSWORD\n", 4),
    ("secret", f"{GOOD}ENV API_KEY x\n", 4),
    ("secret", f"{GOOD}LABEL source=https://user:word@index.example.org\n", 4),
    ("build-host", f"{GOOD}ENV PIP_INDEX_URL=https://index.example.org\n", 4),
    ("build-host", f"{GOOD}ARG https_proxy\n", 4),
    ("build-host", f"{GOOD}ENV A=1 SSL_CERT_FILE=/ca.pem\n", 4),
    ("pip-hashes", f"{GOOD}RUN true; \\\n    python -m pip --quiet install numpy==1.26.4\n", 5),
    ("pip-hashes", f'{GOOD}RUN ["pip", "install", "numpy==1.26.4"]\n', 4),
    ("floating", f"{GOOD}RUN pip install --require-hashes --no-deps -U -r a.txt\n", 4),
    ("floating", f"{GOOD}RUN pip install --require-hashes --no-deps --upgrade -r a.txt\n", 4),
    ("floating", f"{GOOD}RUN pip3 install --require-hashes --no-deps 'numpy>=1.26'\n", 4),
    ("floating", f"{GOOD}RUN git clone https://example.org/a.git\n", 4),
    ("floating", f"{GOOD}RUN apt-get update && apt-get upgrade\n", 4),
    ("floating", f"{GOOD}RUN npm install --global a\n", 4),
    ("system-package", f"{GOOD}RUN apt-get update; \\\n    apt-get install --yes git\n", 5),
    ("system-package", f"{GOOD}RUN apk add git\n", 4),
    ("piped-download", f"{GOOD}RUN curl -fsSL https://example.org/a.sh | sh\n", 4),
    ("piped-download", f"{GOOD}RUN true && \\\n    wget -qO- https://example.org/a | sudo /bin/bash -s\n", 5),
    ("piped-download", f'{GOOD}RUN sh -c "$(curl -fsSL https://example.org/a.sh)"\n', 4),
    ("piped-download", f"{GOOD}RUN <<EOF\nset -eu\ncurl https://example.org/a | python3\nEOF\n", 6),
    ("unverified-download", f"{GOOD}RUN curl -o /a https://example.org/a\n", 4),
    ("unverified-download", f"{GOOD}ADD https://example.org/a /a\n", 4),
]

GOOD_LINES = [
    "ENV TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1",
    "# curl https://example.org/a.sh | sh",
    "RUN pip install --require-hashes --no-deps -r /tmp/a.txt 2>/dev/null",
    "RUN apt-get install --yes --no-install-recommends curl=8.5.0-2 \\\n    ; \\\n    true",
    f"ADD --checksum={DIGEST} https://example.org/a /a",
    "RUN curl -o /a https://example.org/a && echo 'x  /a' | sha256sum -c -",
    "RUN --mount=type=secret,id=pip,target=/tmp/pip.conf true",
    "LABEL org.opencontainers.image.source=https://example.org/isotune",
]

# (rule, requirements, line)
BAD_REQUIREMENTS = [
    ("lock-pin", f"# made\nnumpy>=1.26 {HASH}\n", 2),
    ("lock-pin", "numpy\n", 1),
    ("lock-pin", f"numpy==1.26.4 ; colour == 'red' {HASH}\n", 1),
    ("lock-hash", f"numpy==1.26.4 \\\n    {HASH}\npeft==0.21.2\n", 3),
    ("lock-hash", "numpy==1.26.4 --hash=md5:abc\n", 1),
    ("lock-address", f"--index-url https://index.example.org/simple\nnumpy==1.26.4 {HASH}\n", 1),
    ("lock-address", f"-f /wheels\nnumpy==1.26.4 {HASH}\n", 1),
    ("lock-address", f"numpy @ https://index.example.org/numpy.whl {HASH}\n", 1),
    ("lock-address", f"# from https://index.example.org\nnumpy==1.26.4 {HASH}\n", 1),
    ("one-version", f"numpy==1.26.4 \\\n    {HASH}\nNumPy==2.4.0 {HASH}\n", 3),
    ("one-version", f"a==1 ; python_version < '3.12' {HASH}\na==2 ; python_version >= '3.11' {HASH}\n", 2),
]

WHEEL = {"distribution": "a", "version": "1", "python": "cp311", "architecture": "x86_64", "sha256": "b" * 64}
SOURCED = WHEEL | {"source": "registry", "confidence": "P"}


@pytest.mark.parametrize(("rule", "text", "line"), BAD_DOCKERFILES)
def test_a_rule_of_dockerfiles_can_fail(rule: str, text: str, line: int) -> None:
    found = [(fault.where, fault.line) for fault in check_dockerfile("Dockerfile", text)]
    assert (rule, line) in found
    others = {name for name, _ in found} - {rule}
    assert others <= {"base-digest"}, "another rule fired"


@pytest.mark.parametrize("line", GOOD_LINES)
def test_what_only_looks_like_a_fault_is_none(line: str) -> None:
    assert check_dockerfile("Dockerfile", GOOD.replace("RUN true", line)) == []


def test_a_base_without_a_digest_is_let_through_where_the_image_says_so() -> None:
    text = "ARG B=debian:12\nFROM $B\nUSER 1000\nARG ISOTUNE_BASE_DIGEST=unresolved\n"
    assert check_dockerfile("Dockerfile", text) == []


def test_a_stage_or_scratch_is_no_image_of_a_registry() -> None:
    text = (
        f"FROM scratch AS w\nFROM debian:12@{DIGEST}\nCOPY --from=w /a /b\nCOPY --from=0 /a /b\nUSER 1000\n"
    )
    assert check_dockerfile("Dockerfile", text) == []


@pytest.mark.parametrize(("rule", "text", "line"), BAD_REQUIREMENTS)
def test_a_rule_of_locks_can_fail(rule: str, text: str, line: int) -> None:
    assert [(f.where, f.line) for f in check_requirements("requirements.txt", text)] == [(rule, line)]


def test_two_versions_for_two_environments_are_one_for_each() -> None:
    text = f"a==1 ; platform_machine == 'x86_64' {HASH}\na==2 ; platform_machine == 'aarch64' {HASH}\n"
    assert check_requirements("requirements.txt", text) == []
    three = text + f"b==1 ; python_full_version < '3.11' {HASH}\nb==2 {HASH}\n"
    assert check_requirements("requirements.txt", three, {"python": ["3.11"]}) == []
    assert len(check_requirements("requirements.txt", three, {"python": ["3.10", "3.11"]})) == 1


@pytest.mark.parametrize(
    ("rule", "wheels"),
    [
        ("one-source", [SOURCED, SOURCED]),
        ("one-source", [WHEEL | {"confidence": "P"}]),
        ("lock-hash", [SOURCED | {"sha256": "c" * 64}]),
    ],
)
def test_a_rule_of_a_lock_s_wheels_can_fail(rule: str, wheels: list[dict[str, str]]) -> None:
    text = "schema: 1\nwheels:\n" + "".join(f"- {json.dumps(wheel)}\n" for wheel in wheels)
    found = list(check_lock("lock.yaml", text, f"a==1 {HASH}\n"))
    assert [(fault.where, fault.line) for fault in found] == [(rule, 2 + len(wheels))]


def test_lists_that_are_installed_as_they_stand_are_exact() -> None:
    assert [f.where for f in check_stack("dev.txt", "# all\npytest==9.2.0\nruff>=0.17\nmypy\n")] == [
        "floating"
    ] * 2
    assert [f.line for f in check_constraints("c.txt", "# x\ntorch==2.7.1+das.opt1\ntorch>=2\n")] == [3]


def test_a_script_is_read_as_commands() -> None:
    found = check_script(
        "activate.sh", "#!/bin/sh\n# curl a | sh\nset -eu\ncurl https://example.org/a | sh\n"
    )
    assert [(fault.where, fault.line) for fault in found] == [("piped-download", 4)]


def test_every_rule_was_seen_to_fail() -> None:
    """Those on manifests in test_launch_rules.py."""
    broken = {rule for rule, _, _ in BAD_DOCKERFILES + BAD_REQUIREMENTS} | {"one-source", "frozen"}
    assert broken == set(RULES) - set(MANIFEST_RULES)


SPEC_CHANGES = [
    ("no-latest", "base.reference", ("python:3.11-slim-bookworm", "python:latest")),
    ("secret", "environment.HF_TOKEN", ("runtime:\n", "environment:\n  HF_TOKEN: x\n\nruntime:\n")),
    ("build-host", "environment.PIP_CERT", ("runtime:\n", "environment:\n  PIP_CERT: /ca.pem\n\nruntime:\n")),
    ("one-source", "torch.index", ("version: 2.13.0+cpu", "version: 2.13.0")),
    ("one-source", "torch.version", ("  index: https://download.pytorch.org/whl/cpu\n", "")),
    ("frozen", "refused_packages", ('refused_packages: ["nvidia-*", "cuda-*"]\n', "")),
]


@pytest.mark.parametrize(("rule", "key", "change"), SPEC_CHANGES)
def test_a_rule_of_specs_can_fail(
    damaged: Callable[..., Path], rule: str, key: str, change: tuple[str, str]
) -> None:
    path = damaged(change)
    (path.parent / "images" / "backends").mkdir(parents=True)
    path.rename(path.parent / "images" / "backends" / path.name)
    found = lint(path.parent / "images")
    assert len(found) == 1
    assert found[0].startswith("images/backends/cpu.yaml:")
    assert f": {rule}: {key}: " in found[0]


def test_this_repository_is_clean(build_py: BuildCommand) -> None:
    done = build_py("lint")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("lint: specs, locks and rendered files: no finding by ")


def test_every_finding_of_every_file_is_told_at_once_with_file_line_rule_and_cure(
    tree_build_py: BuildCommand,
) -> None:
    images = tree_build_py.tree / "images"
    changes = {
        "rendered/cpu/Dockerfile": "USER root\n",
        "rendered/hygon/constraints.txt": "numpy\n",
        "locks/tools/requirements.txt": "numpy\n",
        "stack/dev.txt": "numpy\n",
        "entrypoint.sh": "curl https://example.org/a | sh\n",
    }
    ends = {}
    for name, line in changes.items():
        text = (images / name).read_text(encoding="utf-8") + line
        (images / name).write_text(text, encoding="utf-8")
        ends[f"images/{name}"] = len(text.splitlines())
    spec = images / "backends/cuda.yaml"
    spec.write_text(spec.read_text(encoding="utf-8") + "strange: 1\n", encoding="utf-8")
    done = tree_build_py("lint")
    assert done.returncode == 1
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    places = {line.split(": ")[1] for line in lines if line.startswith("error: ")}
    last = len(spec.read_text(encoding="utf-8").splitlines())
    assert places == {f"{name}:{number}" for name, number in ends.items()} | {
        f"images/backends/cuda.yaml:{last}"
    }
    assert lines[-1].startswith("hint: lint: 6 findings")


def test_a_build_lints_its_own_backend_before_it_asks_the_engine(tree_build_py: BuildCommand) -> None:
    lock = tree_build_py.tree / "images/locks/hygon/requirements.txt"
    lock.parent.mkdir(exist_ok=True)
    lock.write_text("numpy\n", encoding="utf-8")
    nowhere = {"DOCKER_HOST": "unix:///nowhere/docker.sock"}
    done = tree_build_py("--backend=cpu", **nowhere)
    assert done.returncode == 69
    assert "lint: cpu: no finding" in done.stderr
    entrypoint = tree_build_py.tree / "images/entrypoint.sh"
    entrypoint.write_text("curl https://example.org/a | sh\n", encoding="utf-8")
    done = tree_build_py("--backend=cpu", **nowhere)
    assert done.returncode == 1
    assert "error: images/entrypoint.sh:1: piped-download: " in done.stderr


@pytest.fixture
def hadolint() -> Callable[..., subprocess.CompletedProcess[str]]:
    beside = Path(sys.executable).with_name("hadolint")
    program = str(beside) if beside.exists() else shutil.which("hadolint")
    if not program:
        pytest.skip("hadolint is not installed: it is in images/stack/dev.txt")

    def run(*paths: Path) -> subprocess.CompletedProcess[str]:
        # Down to the mildest: what is not followed is ignored in place, with its reason.
        command = [program, "--no-color", "--failure-threshold=style", *map(str, paths)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


def test_hadolint_finds_nothing_in_any_rendered_dockerfile(
    hadolint: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    done = hadolint(*sorted((ROOT / "images/rendered").glob("*/Dockerfile")))
    assert (done.returncode, done.stdout) == (0, "")
    bad = tmp_path / "Dockerfile"
    bad.write_text("FROM debian:latest\nRUN apt-get install git\n", encoding="utf-8")
    assert "DL3007" in hadolint(bad).stdout


def test_what_hadolint_is_told_to_ignore_has_its_reason_in_the_line_above() -> None:
    lines = (ROOT / "images/Dockerfile.j2").read_text(encoding="utf-8").splitlines()
    ignored = [number for number, line in enumerate(lines) if "hadolint ignore=" in line]
    assert ignored
    for number in ignored:
        rule = lines[number].partition("=")[2]
        assert lines[number - 1].startswith(f"# {rule} ")
