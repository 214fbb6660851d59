"""The contract of a container, by running one: users, folders, signals, health, vendors' scripts."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from build_command import ROOT, Image

pytestmark = pytest.mark.engine

MODEL = "/out/model"
TRAIN = [
    "train",
    "--adapter",
    "lora",
    "--model",
    MODEL,
    "--data",
    "/opt/isotune/src/train/samples/physics.jsonl",
]
SETTINGS = ["num_generations=0", "per_device_train_batch_size=1", "learning_rate=1e-4"]
ENDLESS = [*TRAIN, "--output=/out/run", *(f"--set={one}" for one in [*SETTINGS, "max_steps=1000000"])]


def docker(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=check)


def within(seconds: float, found: Callable[[], Any]) -> Any:
    """What `found` returns once it is true; fails after so many seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if result := found():
            return result
        time.sleep(0.5)
    raise AssertionError(f"not within {seconds} s")


@pytest.fixture(scope="module")
def results(cpu_image: Image) -> Iterator[str]:
    """A volume for /out, with a tiny model in it that an unknown user made."""
    name = "isotune-test-out"
    docker("volume", "create", name)
    done = cpu_image.run(
        "train", "make-tiny", "--kind=text", f"--output={MODEL}", options=("-v", f"{name}:/out")
    )
    assert done.returncode == 0, done.stderr
    yield name
    docker("volume", "rm", "-f", name)


@pytest.fixture
def training(cpu_image: Image, results: str) -> Iterator[Callable[..., str]]:
    """Start an endless training the hard way (unknown user, read-only, no network, no tmpfs)."""
    name = "isotune-test-training"

    def start(*options: str) -> str:
        hard = ["--network=none", "--read-only", "--user=12345:0", "-v", f"{results}:/out"]
        docker("run", "-d", "--name", name, *hard, *options, cpu_image.reference, *ENDLESS)
        within(120, lambda: "step 3/" in docker("logs", name).stdout)
        return name

    yield start
    docker("rm", "-f", name, check=False)
    cpu_image.run("sh", "-c", "rm -rf /out/run", options=("-v", f"{results}:/out"))


def health_of(name: str) -> dict[str, Any]:
    return json.loads(docker("inspect", "--format={{json .State.Health}}", name).stdout)


def test_the_image_s_own_user_has_a_name_a_home_and_a_place_for_results(cpu_image: Image) -> None:
    script = "id -un; id -g; echo $HOME; touch $HOME/probe /workspace/probe /out/probe && pwd"
    done = docker("run", "--rm", "--network=none", cpu_image.reference, "sh", "-c", script)
    assert done.stdout.split() == ["isotune", "0", "/home/isotune", "/workspace"]


def test_any_user_of_group_0_may_write_where_the_image_s_own_user_may(cpu_image: Image) -> None:
    script = "id -u; touch $HOME/probe /workspace/probe /out/probe && echo written"
    done = docker("run", "--rm", "--network=none", "--user=54321:0", cpu_image.reference, "sh", "-c", script)
    assert done.stdout.split() == ["54321", "written"]


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ((), "/dev/shm"),
        (("--tmpfs=/tmp",), "/tmp"),
        (("--tmpfs=/workspace:mode=1777", "--ipc=none"), "/workspace"),
    ],
)
def test_with_a_read_only_root_everything_is_written_where_there_is_room(
    cpu_image: Image, options: tuple[str, ...], place: str
) -> None:
    script = "touch /probe 2>/dev/null; echo $HOME; dirname $(mktemp); ls / | grep -c probe"
    done = cpu_image.run("sh", "-c", script, options=options)
    assert done.stdout.split() == [place, place, "0"], done.stderr


def test_a_stop_saves_a_checkpoint_and_ends_with_75(training: Callable[..., str]) -> None:
    """SIGTERM as Docker and Kubernetes send it, with the grace of a pod: 30 s."""
    name = training()
    docker("stop", "--time=30", name)
    state = json.loads(docker("inspect", "--format={{json .State}}", name).stdout)
    logs = docker("logs", name)
    assert state["ExitCode"] == 75, logs.stderr
    assert "SIGTERM: the run stops after this batch and saves a checkpoint" in logs.stderr
    assert "is saved\nhint: the same command goes on from there" in logs.stderr


def test_the_health_check_follows_the_heartbeat_of_a_run(cpu_image: Image, results: str) -> None:
    """Asked inside the container, as an engine does it: while the run trains, hangs, and is killed."""
    script = f"""
{" ".join(ENDLESS)} >/out/log 2>&1 &
run=$!
until healthcheck | grep "healthy: .* training, [1-9]"; do sleep 1; done
kill -STOP $run; sleep 3
ISOTUNE_HEARTBEAT_LIMIT_SECONDS=2 healthcheck; echo $?
kill -KILL $run; wait
healthcheck; echo $?; ls /dev/shm; rm -rf /out/run
"""
    done = cpu_image.run("timeout", "120", "sh", "-c", script, options=("-v", f"{results}:/out"))
    alive, silent, code, gone, *rest = done.stdout.splitlines()
    assert alive.startswith("healthy: process "), done.stderr
    assert ", training, " in silent
    assert "no sign of life for " in silent
    assert code == "1"
    assert gone == "healthy: no run is active"
    # What a killed run leaves counts for nothing.
    assert (rest[0], rest[1].startswith("isotune-heartbeat-")) == ("0", True)


def test_an_engine_shows_the_health_of_a_run(training: Callable[..., str]) -> None:
    name = training("--health-interval=1s", "--health-retries=1", "--env=ISOTUNE_HEARTBEAT_LIMIT_SECONDS=10")
    if docker("exec", name, "/opt/isotune/bin/healthcheck", check=False).returncode > 1:
        pytest.skip("the engine's exec does not enter the container's file system")
    health = within(60, lambda: health_of(name) if health_of(name)["Status"] == "healthy" else None)
    assert "healthy: process 1, training, " in health["Log"][-1]["Output"]
    docker("kill", "--signal=STOP", name)
    health = within(60, lambda: health_of(name) if health_of(name)["Status"] == "unhealthy" else None)
    assert "no sign of life for " in health["Log"][-1]["Output"]


def test_a_container_without_a_run_is_healthy(cpu_image: Image) -> None:
    done = cpu_image.run("healthcheck")
    assert (done.returncode, done.stdout) == (0, "healthy: no run is active\n")


def test_the_health_check_is_in_the_image_s_configuration(cpu_image: Image, tmp_path: Path) -> None:
    """Also in an OCI layout: not a field of that format, but what engines read."""
    (config,) = json.loads(docker("image", "inspect", cpu_image.reference).stdout)
    wanted = ["CMD", "/opt/isotune/bin/healthcheck"]
    assert config["Config"]["Healthcheck"]["Test"] == wanted
    done = cpu_image.build_again(f"--output=oci:{tmp_path / 'layout'}")
    assert done.returncode == 0, done.stderr
    blobs = tmp_path / "layout/blobs/sha256"
    index = json.loads((tmp_path / "layout/index.json").read_text(encoding="utf-8"))
    manifest = json.loads(
        (blobs / index["manifests"][0]["digest"].partition(":")[2]).read_text(encoding="utf-8")
    )
    saved = json.loads((blobs / manifest["config"]["digest"].partition(":")[2]).read_text(encoding="utf-8"))
    assert saved["config"]["Healthcheck"]["Test"] == wanted


def test_a_library_of_the_driver_that_is_missing_is_told_with_what_brings_it(cpu_image: Image) -> None:
    """A plugin of torch is imported by torch itself: here one that loads a library which nobody has."""
    script = """
cd /data; mkdir plugin-1.dist-info
printf 'Name: plugin\\nVersion: 1\\n' >plugin-1.dist-info/METADATA
printf '[torch.backends]\\nplugin = plugin:start\\n' >plugin-1.dist-info/entry_points.txt
echo 'import ctypes; ctypes.CDLL("libisotune_driver.so")' >plugin.py
python - <<'END'
import json, sys
info = json.load(open(sys.prefix + "/build-info.json"))
lacks = {"name": "libisotune_driver.so", "folders": ["/driver"], "given_by": "-v /driver:/driver:ro"}
info["runtime"]["libraries"] = [lacks]
json.dump(info, open("/data/info.json", "w"))
END
ISOTUNE_BUILD_INFO=/data/info.json train make-tiny --kind=text --output=/data/model
"""
    options = ("--tmpfs=/data:mode=1777", "--env=PYTHONPATH=/data")
    done = cpu_image.run("sh", "-c", script, options=options)
    assert done.returncode == 69, done.stderr
    assert done.stderr == (
        "error: libisotune_driver.so: cannot be loaded here: the host's driver: -v /driver:/driver:ro\n"
        "hint: `train doctor` shows all that this container lacks\n"
    )


def test_the_scripts_of_a_base_image_are_sourced_where_they_are(cpu_image: Image, tmp_path: Path) -> None:
    """The file that another backend's image has, over scripts that write, fail and read unset variables."""
    reference = "isotune-test:scripts"
    (tmp_path / "activate.sh").write_text(
        (ROOT / "images/rendered/ascend/activate.sh").read_text("utf-8"), "utf-8"
    )
    first, *others = [
        word
        for line in (tmp_path / "activate.sh").read_text(encoding="utf-8").splitlines()
        if line.startswith("activate ")
        for word in line.split()[1:]
        if word.startswith("/")
    ]
    (tmp_path / "set_env.sh").write_text(
        'echo noise; export SOURCED="$0 with ${UNSET}nothing"; export PYTHONPATH=":/vendor:"; false\n',
        "utf-8",
    )
    dockerfile = (
        f"FROM {cpu_image.reference}\nCOPY activate.sh /opt/isotune/activate.sh\nCOPY set_env.sh {first}\n"
    )
    (tmp_path / "Dockerfile").write_text(dockerfile, encoding="utf-8")
    docker("buildx", "build", f"--tag={reference}", str(tmp_path))
    try:
        done = docker("run", "--rm", reference, "sh", "-c", "echo $SOURCED; echo $PYTHONPATH", check=False)
        assert done.stdout.splitlines() == ["/opt/isotune/bin/entrypoint with nothing", "/vendor"], (
            done.stderr
        )
        assert done.stderr == "noise\n"
    finally:
        docker("image", "rm", "-f", reference, check=False)
    assert others, "the others are not there, which is no fault"


def test_folders_that_a_toolkit_writes_to_are_made_below_the_scratch_folder(
    cpu_image: Image, tmp_path: Path
) -> None:
    reference = "isotune-test:folders"
    script = (ROOT / "images/rendered/ascend/activate.sh").read_text("utf-8")
    (tmp_path / "activate.sh").write_text(script, "utf-8")
    dockerfile = f"FROM {cpu_image.reference}\nCOPY activate.sh /opt/isotune/activate.sh\n"
    (tmp_path / "Dockerfile").write_text(dockerfile, encoding="utf-8")
    docker("buildx", "build", f"--tag={reference}", str(tmp_path))
    show = (
        'for name in CACHE WORK; do eval "folder=\\$ASCEND_${name}_PATH"; echo $folder; touch $folder/x; done'
    )
    hard = ["run", "--rm", "--read-only", "--user=12345:0", "--network=none"]
    try:
        done = docker(*hard, "--tmpfs=/tmp", "--env=ASCEND_WORK_PATH=/tmp/mine", reference, "sh", "-c", show)
        assert done.stdout.splitlines() == ["/tmp/isotune/ascend/cache", "/tmp/mine"]
        # Nothing but /dev/shm can be written; what cannot be made is told, and does not stop the run.
        done = docker(
            *hard, "--env=ASCEND_WORK_PATH=/none/x", reference, "sh", "-c", "echo $ASCEND_CACHE_PATH"
        )
        assert done.stdout == "/dev/shm/isotune/ascend/cache\n"
        assert "warning: ASCEND_WORK_PATH: /none/x cannot be made" in done.stderr
    finally:
        docker("image", "rm", "-f", reference, check=False)
