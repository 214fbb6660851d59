"""The Job that `build.py launch` prints, run by `podman kube play`, which reads Kubernetes' own files."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pytest
from launched import launch_text

pytestmark = [pytest.mark.engine, pytest.mark.slow]

# Words before podman's own, such as those that enter another root; and the image, as podman has it.
COMMAND, IMAGE = "ISOTUNE_TEST_PODMAN", "ISOTUNE_TEST_PODMAN_IMAGE"
WORK, RESULTS = "isotune-test-work", "isotune-test-results"
FILL = """
train make-tiny --kind text --output /v/model
cp "$(python -c 'from train.checks.tiny import samples_file; print(samples_file())')" /v/rows.jsonl
chown -R 1000:1000 /v /r
"""


class Podman:
    """podman on a host that need not have it on PATH, with an image in its storage."""

    def __init__(self, words: list[str], image: str) -> None:
        self.words, self.image = words, image

    def __call__(self, *words: str, given: str = "", check: bool = True) -> str:
        done = subprocess.run(
            [*self.words, *words], input=given, capture_output=True, text=True, check=False, timeout=600
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def play(self, name: str, *words: str) -> dict[str, Any]:
        """Run a Job to its end; returns what podman tells of its container, with its output as `Log`."""
        settings = [
            "--train=max_steps=4",
            "--train=num_generations=0",
            "--memory=4g",
            "--cpus=1",
            "--shm=64m",
        ]
        places = [f"--model=pvc:{WORK}/model", f"--data=pvc:{WORK}/rows.jsonl", f"--output=pvc:{RESULTS}"]
        job = ["--backend=cpu", "--as=job", f"--name={name}", f"--image={self.image}", *places, *settings]
        manifest = launch_text([*job, *words])
        self("kube", "play", "--network=none", "-", given=manifest)
        try:
            self("wait", f"{name}-pod-train")
            (told,) = json.loads(self("inspect", f"{name}-pod-train"))
            return told | {"Log": self("logs", f"{name}-pod-train")}
        finally:
            self("kube", "down", "-", given=manifest, check=False)


@pytest.fixture(scope="module")
def podman() -> Iterator[Podman]:
    words = shlex.split(os.environ.get(COMMAND, "podman"))
    if not shutil.which(words[0]):
        pytest.skip(f"there is no {words[0]} here (5 or newer runs a Job); {COMMAND} names its command")
    found = Podman(words, os.environ.get(IMAGE, "docker.io/library/isotune:cpu"))
    if subprocess.run([*words, "image", "exists", found.image], capture_output=True, check=False).returncode:
        pytest.skip(f"podman has no {found.image}: docker save isotune:cpu | podman load; or {IMAGE}")
    for volume in (WORK, RESULTS):
        found("volume", "create", "--ignore", volume)
    run = ["run", "--rm", "--network=none", "--user=0", f"--volume={WORK}:/v", f"--volume={RESULTS}:/r"]
    found(*run, found.image, "bash", "-euc", FILL)
    yield found
    found("volume", "rm", "-f", WORK, RESULTS, check=False)


@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_the_job_trains_to_its_end_as_the_user_it_names_on_a_closed_root(
    podman: Podman, adapter: str
) -> None:
    name = f"isotune-test-{adapter}-{time.time_ns()}"
    told = podman.play(name, f"--adapter={adapter}")
    assert told["State"]["ExitCode"] == 0, told["Log"]
    assert told["Config"]["User"] == "1000:1000"
    assert told["HostConfig"]["ReadonlyRootfs"]
    assert not told["HostConfig"]["Privileged"]
    assert told["EffectiveCaps"] in (None, [])
    assert "finished: 4 steps" in told["Log"]


def test_a_wrong_recipe_ends_the_job_with_its_exit_code(podman: Podman) -> None:
    told = podman.play(f"isotune-test-wrong-{time.time_ns()}", "--train=lora.r=none")
    assert told["State"]["ExitCode"] == 78
