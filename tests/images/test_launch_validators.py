"""Others' programs on the examples: silent on all, and each one seen to find its faults."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from launched import launch_text, places

from images.launch.options import SHAPES
from tests import launch_checks, launch_checks_checkov
from tests.launch_faults import BY_OTHERS, CHECKOV, COMPOSE, KUBERNETES, TRAINER, YAMLLINT

pytestmark = pytest.mark.slow
Check = Callable[[Path, list[Path]], list[launch_checks.Finding]]
CHECKS: dict[str, Check] = {
    COMPOSE: launch_checks.compose_config,
    YAMLLINT: launch_checks.yamllint,
    KUBERNETES: launch_checks.kubernetes_schemas,
    TRAINER: launch_checks.trainer_models,
}


@pytest.fixture(scope="module")
def environment() -> Path:
    """The environment of the checks; skipped, with the reason, where it cannot be made."""
    try:
        return launch_checks.make(launch_checks.default_folder())
    except launch_checks.NotMade as fault:
        pytest.skip(f"the environment of the checks could not be made: {fault}")


@pytest.mark.parametrize("name", CHECKS)
def test_the_examples_pass(name: str, environment: Path) -> None:
    assert CHECKS[name](environment, sorted(launch_checks.EXAMPLES.rglob("*.yaml"))) == []


@pytest.mark.parametrize("name", CHECKS)
def test_the_check_finds_each_fault_made_for_it(name: str, environment: Path, tmp_path: Path) -> None:
    require_found(name, CHECKS[name], environment, tmp_path)


def require_found(name: str, check: Check, environment: Path, folder: Path) -> None:
    """All faulty files in one call: the program starts once."""
    files = {}
    for number, fault in enumerate(fault for fault in BY_OTHERS if fault.found_by == name):
        path = folder / f"{fault.shape}-{number}.yaml"
        path.write_text(fault.text(), encoding="utf-8")
        files[str(path)] = fault.name
    found = {file for file, _ in check(environment, [Path(file) for file in files])}
    assert sorted(files[file] for file in found) == sorted(files.values())
    assert len(files) >= 2


@pytest.fixture(scope="module")
def checkov_environment() -> Path:
    """checkov's own environment; only where it is asked for."""
    if os.environ.get("ISOTUNE_TEST_CHECKOV") != "1":
        pytest.skip("checkov takes minutes to install: ISOTUNE_TEST_CHECKOV=1 asks for it, as .ci/slow does")
    folder = launch_checks.default_folder()
    try:
        return launch_checks_checkov.make(folder.with_name(f"{folder.name}-checkov"))
    except launch_checks.NotMade as fault:
        pytest.skip(f"the environment of checkov could not be made: {fault}")


def test_checkov_finds_in_the_examples_what_is_let_be_with_a_reason_and_nothing_else(
    checkov_environment: Path,
) -> None:
    files = sorted(launch_checks.EXAMPLES.rglob("*.yaml"))
    found = launch_checks_checkov.found(checkov_environment, files)
    assert {check for _, check, _ in found} == set(launch_checks_checkov.SKIPPED)
    manifests = {str(path) for path in files if path.name != "compose.yaml"}
    assert {file for file, _, _ in found} == manifests  # it has read each of them


def test_checkov_is_content_with_an_image_by_digest(checkov_environment: Path, tmp_path: Path) -> None:
    words = ["--backend=cuda", "--as=job", f"--image=r.example/i@sha256:{'0' * 64}"]
    words += ["--uid=20000", "--namespace=training"]
    path = tmp_path / "job.yaml"
    path.write_text(launch_text([*words, *places("job")]), encoding="utf-8")
    found = {check for _, check, _ in launch_checks_checkov.found(checkov_environment, [path])}
    assert found == {"CKV2_K8S_6"}


def test_checkov_finds_each_fault_made_for_it(checkov_environment: Path, tmp_path: Path) -> None:
    require_found(CHECKOV, launch_checks_checkov.checkov, checkov_environment, tmp_path)


FULL = "--eval-data={place}e.jsonl --adapter=oft --train=oft.oft_block_size=64 --devices=2 --groups=44,109"
FULL += " --env=A=b --interface=eth0 --runtime=own --verify --grace=100 --shm=4g"
FULL += " --scratch=1g --cpus=2 --memory=64g"
PODS = (
    " --namespace=ns --priority=high --node-selector=a.b/c=d --tolerations=a=b:NoSchedule,c --labels=team=x"
)
PODS += " --annotations=d.e/f=g --queue=q --retries=1 --no-spread --resource=a.b/c"


@pytest.mark.parametrize("backend", ["ascend", "hygon"])
def test_files_with_every_option_pass(environment: Path, tmp_path: Path, backend: str) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("learning_rate: 1e-4\n", encoding="utf-8")
    files = []
    for shape in SHAPES:
        compose = shape == "compose"
        words = FULL.format(place="./" if compose else "pvc:rows/").split() + (
            [] if compose else PODS.split()
        )
        words += ["--nodes=3"] if shape != "job" else []
        words += ["--exceptions"] if backend == "hygon" else []
        words += ["--rank-table"] if shape == "volcano" and backend == "ascend" else []
        path = tmp_path / f"{shape}.yaml"
        own = [f"--backend={backend}", f"--as={shape}", f"--recipe={recipe}"]
        path.write_text(launch_text([*own, *places(shape), *words]), encoding="utf-8")
        files.append(path)
    assert [finding for check in CHECKS.values() for finding in check(environment, files)] == []


def test_an_unset_variable_or_a_dollar_never_reaches_compose(environment: Path, tmp_path: Path) -> None:
    """What an option says arrives as it is: Compose replaces nothing in it."""
    words = [
        "--backend=cpu",
        "--as=compose",
        "--model=./m",
        "--data=./d",
        "--output=./o",
        "--env=A=$HOME${B:?x}",
    ]
    path = tmp_path / "compose.yaml"
    path.write_text(launch_text(words), encoding="utf-8")
    assert launch_checks.compose_config(environment, [path]) == []
    shown = launch_checks.compose_shown(environment, path)
    assert shown["services"]["train"]["environment"]["A"] == "$$HOME$${B:?x}"
