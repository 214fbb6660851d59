"""What `build.py launch --as compose` prints, run by Compose on a real engine: whole, stopped, resumed."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launched import launch_text

from tests import launch_checks

pytestmark = [pytest.mark.engine, pytest.mark.slow]
VOLUME, USER = "isotune-test-launch", "1000:1000"


def docker(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def image(request: pytest.FixtureRequest) -> str:
    """The cpu image: the one that a variable names, else the one that these tests build."""
    named = os.environ.get("ISOTUNE_TEST_IMAGE")
    return named or request.getfixturevalue("cpu_image").tag


@pytest.fixture(scope="module")
def folder(image: str) -> Iterator[str]:
    """A folder of the engine's host with a tiny model, rows and `out`: a volume's, for it may be another."""
    docker("volume", "create", VOLUME)
    fill = "train make-tiny --kind text --output /v/model && cp {} /v/rows.jsonl && mkdir -p /v/out"
    rows = "$(python -c 'from train.checks.tiny import samples_file; print(samples_file())')"
    command = f"{fill.format(rows)} && chown -R {USER} /v && chmod 777 /v /v/out"
    docker("run", "--rm", "--user=0", f"--volume={VOLUME}:/v", image, "bash", "-c", command)
    yield docker("volume", "inspect", "--format={{.Mountpoint}}", VOLUME).stdout.strip()
    docker("volume", "rm", "-f", VOLUME)


@pytest.fixture
def compose(image: str, folder: str, tmp_path: Path) -> Iterator[Any]:
    """`up` of a launch with these options; Compose's own program, and everything gone afterwards."""
    try:
        program = launch_checks.make(launch_checks.default_folder()) / "bin" / "docker-compose"
    except launch_checks.NotMade as fault:
        pytest.skip(f"Compose could not be installed: {fault}")
    file = tmp_path / "compose.yaml"

    def run(*words: str) -> list[str]:
        places = [f"--model={folder}/model", f"--data={folder}/rows.jsonl", f"--output={folder}/out"]
        settings = ["--train=num_generations=0", "--train=logging_steps=1"]
        settings += [] if any("max_steps" in word for word in words) else ["--train=max_steps=6"]
        words = (*places, *settings, f"--image={image}", "--shm=64m", "--scratch=512m", *words)
        file.write_text(launch_text(["--backend=cpu", "--as=compose", *words]), encoding="utf-8")
        return [str(program), "-f", str(file)]

    yield run
    if file.exists():
        subprocess.run([str(program), "-f", str(file), "down", "-t", "1"], capture_output=True, check=False)


def up(command: list[str], service: str = "train") -> subprocess.CompletedProcess[str]:
    words = [*command, "up", "--no-color", "--exit-code-from", service]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=600)


def losses(image: str, run: str) -> list[float]:
    """Return the losses of a run, as its metrics have them."""
    code = f"""
import json
for line in open('/v/out/{run}/metrics.jsonl'):
    row = json.loads(line)
    if 'loss' in row: print(row['loss'])
"""
    done = docker("run", "--rm", f"--volume={VOLUME}:/v:ro", image, "python", "-c", code)
    return [float(line) for line in done.stdout.split()]


@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_the_service_trains_to_the_end_with_64_mib_of_shm(compose: Any, image: str, adapter: str) -> None:
    done = up(compose(f"--adapter={adapter}", f"--name=whole-{adapter}", "--verify"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(losses(image, f"whole-{adapter}")) == 6


def test_a_wrong_recipe_fails_with_its_exit_code(compose: Any) -> None:
    done = up(compose("--train=lora.r=none", "--name=wrong"))
    assert done.returncode == 78, done.stdout + done.stderr


def test_a_stopped_service_has_saved_and_the_same_file_resumes_to_equal_losses(
    compose: Any, image: str
) -> None:
    command = compose("--name=stopped", "--train=max_steps=400", "--train=save_steps=400")
    subprocess.run([*command, "up", "-d"], check=True, capture_output=True)
    _wait_for_steps(image, "stopped", 3)
    subprocess.run([*command, "stop"], check=True, capture_output=True)
    state = docker("inspect", "--format={{.State.ExitCode}}", "stopped-train-1").stdout.strip()
    assert state == "75", docker("logs", "stopped-train-1").stderr
    done_before = len(losses(image, "stopped"))
    assert 3 <= done_before < 400

    assert up(command).returncode == 0
    assert up(compose("--name=straight", "--train=max_steps=400", "--train=save_steps=400")).returncode == 0
    assert losses(image, "stopped") == losses(image, "straight")


EQUAL = ["--train=per_device_train_batch_size=1", "--train=learning_rate=1e-3", "--train=adam_epsilon=1e-3"]


@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_two_nodes_on_a_network_train_as_one_process(compose: Any, image: str, adapter: str) -> None:
    nodes = compose(*EQUAL, f"--adapter={adapter}", f"--name=nodes-{adapter}", "--nodes=2")
    done = up(nodes, "node-0")
    assert done.returncode == 0, done.stdout + done.stderr
    one = compose(
        *EQUAL, f"--adapter={adapter}", f"--name=one-{adapter}", "--train=gradient_accumulation_steps=2"
    )
    assert up(one).returncode == 0
    found = losses(image, f"nodes-{adapter}")
    assert len(found) == 6
    assert found == pytest.approx(losses(image, f"one-{adapter}"), rel=1e-6, abs=1e-6)


def test_a_killed_node_ends_the_job_within_a_minute_with_a_word_and_the_same_file_resumes(
    compose: Any, image: str
) -> None:
    settings = [*EQUAL, "--nodes=2", "--train=max_steps=60", "--train=save_steps=5"]
    command = compose(*settings, "--name=killed")
    subprocess.run([*command, "up", "-d"], check=True, capture_output=True)
    _wait_for_steps(image, "killed", 8, "node-0")
    docker("kill", "--signal=KILL", "killed-node-1-1")
    started = time.monotonic()
    code = docker("wait", "killed-node-0-1").stdout.strip()
    assert time.monotonic() - started < 60
    logs = docker("logs", "killed-node-0-1")
    assert code not in ("0", "64", "65", "78"), code
    assert "error: " in logs.stderr, logs.stderr

    done = up(command, "node-0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert up(compose(*settings, "--name=unkilled"), "node-0").returncode == 0
    assert losses(image, "killed")[-1] == pytest.approx(losses(image, "unkilled")[-1], rel=1e-6)


def test_stopped_nodes_have_saved_and_resume(compose: Any, image: str) -> None:
    settings = [*EQUAL, "--nodes=2", "--train=max_steps=60", "--train=save_steps=60"]
    command = compose(*settings, "--name=halted")
    subprocess.run([*command, "up", "-d"], check=True, capture_output=True)
    _wait_for_steps(image, "halted", 5, "node-0")
    subprocess.run([*command, "stop"], check=True, capture_output=True)
    for node in (0, 1):
        state = docker("inspect", "--format={{.State.ExitCode}}", f"halted-node-{node}-1").stdout.strip()
        assert state == "75", docker("logs", f"halted-node-{node}-1").stderr
    done = up(command, "node-0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert up(compose(*settings, "--name=unhalted"), "node-0").returncode == 0
    assert losses(image, "halted") == losses(image, "unhalted")


def _wait_for_steps(image: str, run: str, steps: int, service: str = "train") -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        found = docker("exec", f"{run}-{service}-1", "cat", f"/out/{run}/metrics.jsonl", check=False)
        if found.stdout.count('"loss"') >= steps:
            return
        time.sleep(0.5)
    raise AssertionError(docker("logs", f"{run}-{service}-1").stderr)
