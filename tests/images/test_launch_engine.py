"""What `build.py launch --as compose` prints, run by Compose on a real engine: stopped, cut off, resumed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from composed import Composed, Launches, docker

from tests import launch_checks

pytestmark = [pytest.mark.engine, pytest.mark.slow]
MARK = str(os.getpid())
VOLUME, USER, STEPS = f"isotune-test-launch-{MARK}", "1000:1000", 100
NODES = ("node-0", "node-1")
# A large epsilon: rounding does not turn the signs of AdamW's first steps.
SETTINGS = ["--train=per_device_train_batch_size=1"]
SETTINGS += ["--train=learning_rate=1e-3", "--train=adam_epsilon=1e-3"]
TWO = ["--nodes=2", f"--train=max_steps={STEPS}", *SETTINGS]
ONE = [f"--train=max_steps={STEPS}", *SETTINGS, "--train=gradient_accumulation_steps=2"]


@pytest.fixture(scope="module")
def image(request: pytest.FixtureRequest) -> str:
    """The cpu image: the one that a variable names, else the one that these tests build."""
    named = os.environ.get("ISOTUNE_TEST_IMAGE")
    return named or request.getfixturevalue("cpu_image").tag


@pytest.fixture(scope="module")
def folder(image: str) -> Iterator[str]:
    """A folder of the engine's host with a tiny model, rows and `out`: a volume's, for it may be another."""
    docker("volume", "create", VOLUME)
    try:
        fill = "train make-tiny --kind text --output /v/model && cp {} /v/rows.jsonl && mkdir -p /v/out"
        rows = "$(python -c 'from train.checks.tiny import samples_file; print(samples_file())')"
        command = f"{fill.format(rows)} && chown -R {USER} /v && chmod 777 /v /v/out"
        docker(
            "run", "--rm", "--network=none", "--user=0", f"--volume={VOLUME}:/v", image, "bash", "-c", command
        )
        yield docker("volume", "inspect", "--format={{.Mountpoint}}", VOLUME).stdout.strip()
    finally:
        docker("volume", "rm", "-f", VOLUME)


@pytest.fixture(scope="module")
def launch(
    image: str, folder: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Launches]:
    """Makes launches, and removes what they left at the end; says what runs them."""
    try:
        program = launch_checks.make(launch_checks.default_folder()) / "bin" / "docker-compose"
    except launch_checks.NotMade as fault:
        pytest.skip(f"Compose could not be installed: {fault}")
    launches = Launches(MARK, image, folder, program, tmp_path_factory.mktemp("launches"))
    engine = docker("version", "--format={{.Server.Version}}").stdout.strip()
    compose = launches("versions", *ONE).compose("version", "--short").stdout.strip()
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print(f"\nengine {engine}, compose {compose}")
    yield launches
    launches.remove()


@pytest.fixture(scope="module")
def whole(launch: Launches) -> Composed:
    """One process that ran to its end, verified before, with 64 MiB of shm."""
    run = launch("whole", *ONE, "--verify")
    assert run.up("train") == [0], run.said()
    return run


@pytest.fixture(scope="module")
def pair(launch: Launches) -> Composed:
    """Two nodes that ran to their end undisturbed."""
    run = launch("pair", *TWO)
    assert run.up(*NODES) == [0, 0], run.said("node-0") + run.said("node-1")
    return run


def test_a_wrong_recipe_fails_with_its_exit_code(launch: Launches) -> None:
    wrong = launch("wrong", "--train=lora.r=none")
    assert wrong.up("train") == [78], wrong.said()


def test_the_service_is_verified_and_trains_to_the_end_with_64_mib_of_shm(whole: Composed) -> None:
    assert len(whole.losses()) == STEPS
    assert "0 failed" in whole.said("verify")


def test_two_nodes_on_a_network_train_as_one_process(whole: Composed, pair: Composed) -> None:
    assert len(pair.losses("node-0")) == STEPS
    assert pair.losses("node-0") == pytest.approx(whole.losses(), rel=1e-6, abs=1e-6)


def test_two_nodes_train_as_one_process_with_oft(launch: Launches) -> None:
    few = ["--train=max_steps=6", "--adapter=oft"]
    two = launch("pair-oft", "--nodes=2", *SETTINGS, *few)
    one = launch("whole-oft", "--train=gradient_accumulation_steps=2", *SETTINGS, *few)
    assert two.up(*NODES) == [0, 0], two.said("node-0") + two.said("node-1")
    assert one.up("train") == [0], one.said()
    assert len(one.losses()) == 6
    assert two.losses("node-0") == pytest.approx(one.losses(), rel=1e-6, abs=1e-6)


def test_a_stopped_service_has_saved_and_the_same_file_resumes_to_equal_losses(
    launch: Launches, whole: Composed
) -> None:
    run = launch("stopped", *ONE)
    run.start()
    run.trains()
    assert run.compose("stop").returncode == 0
    assert run.ended() == 75, run.said()
    assert 3 <= len(run.losses()) < STEPS
    assert run.up("train") == [0], run.said()
    assert "resume: goes on after step" in run.said()
    assert run.losses() == whole.losses()


def test_stopped_nodes_have_saved_and_resume_to_equal_losses(launch: Launches, pair: Composed) -> None:
    run = launch("halted", *TWO)
    run.start()
    run.trains("node-0")
    assert run.compose("stop").returncode == 0
    assert [run.ended(node) for node in NODES] == [75, 75], run.said("node-0") + run.said("node-1")
    assert 3 <= len(run.losses("node-0")) < STEPS
    require_resumes(run, pair)


def test_a_killed_node_ends_the_job_within_a_minute_with_a_word_and_it_resumes(
    launch: Launches, pair: Composed
) -> None:
    run = launch("killed", *TWO, "--train=save_steps=5")
    run.start()
    run.trains("node-0", 8)
    docker("kill", "--signal=KILL", run.container("node-1"))
    started = time.monotonic()
    assert run.ended("node-0") == 70, run.said("node-0")
    assert time.monotonic() - started < 60
    require_lost(run, "error: the connection to another process was lost: ")
    require_resumes(run, pair)


def test_a_network_that_is_cut_for_20_seconds_costs_the_time_alone(launch: Launches, pair: Composed) -> None:
    """Connections outlive it where a node keeps its address: what was not acknowledged is sent again."""
    run = launch("cut", *TWO)
    run.start()
    run.trains("node-0")
    docker("network", "disconnect", run.network, run.container("node-1"))
    time.sleep(5)
    stood = len(run.losses("node-0"))
    time.sleep(15)
    assert len(run.losses("node-0")) == stood < STEPS
    docker("network", "connect", "--alias=node-1", run.network, run.container("node-1"))
    assert [run.ended(node) for node in NODES] == [0, 0], run.said("node-0") + run.said("node-1")
    assert run.losses("node-0") == pair.losses("node-0")


def test_a_network_that_stays_cut_ends_every_node_by_its_own_limit_and_the_job_resumes(
    launch: Launches, pair: Composed
) -> None:
    """No connection is closed then: the time of a step is all that tells."""
    run = launch("severed", *TWO, "--train=save_steps=5", "--train=step_timeout_seconds=15")
    run.start()
    run.trains("node-0", 8)
    docker("network", "disconnect", run.network, run.container("node-1"))
    assert [run.ended(node) for node in NODES] == [70, 70], run.said("node-0") + run.said("node-1")
    require_lost(run, "error: the step did not end within 15 s: the run hangs")
    assert run.compose("down").returncode == 0
    require_resumes(run, pair)


def require_lost(run: Composed, word: str) -> None:
    """The words of node 0, and how the run goes on; no traceback of ours."""
    said = run.said("node-0")
    assert word in said, said
    assert "the same command goes on" in said
    assert "Traceback" not in said


def require_resumes(run: Composed, undisturbed: Composed) -> None:
    """The same file goes on after a checkpoint, to the losses of a run without the fault."""
    assert run.up(*NODES) == [0, 0], run.said("node-0") + run.said("node-1")
    assert "resume: goes on after step" in run.said("node-0")
    assert run.losses("node-0") == undisturbed.losses("node-0")
