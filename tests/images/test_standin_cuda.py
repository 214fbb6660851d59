"""CUDA's production lock with its real libraries on a base without a driver: verify runs on the CPU."""

from __future__ import annotations

import os

import pytest
from build_command import BuildCommand
from standin import docker, keep, require_chosen, verified, without

from images.engine import connect

pytestmark = [pytest.mark.engine, pytest.mark.slow]

TAG = "isotune-test:cuda"


def test_the_real_cuda_wheels_train_on_the_cpu(build_options: list[str], build_py: BuildCommand) -> None:
    require_chosen("cuda", "4.3 GB of wheels and 16 GB of disk, about 30 minutes")
    base = os.environ.get("ISOTUNE_TEST_BASE_NOBLE", "isotune-base:noble")
    if connect().digest(base) is None:
        pytest.skip(
            f"the engine has no Ubuntu 24.04 base {base} with python3-venv: set ISOTUNE_TEST_BASE_NOBLE"
        )
    options = without(build_options, "--backend", "--base-image", "--wheelhouse")
    done = build_py("--backend=cuda", f"--base-image={base}", f"--tag={TAG}", *options)
    assert done.returncode == 0, done.stderr
    report = verified(TAG)
    assert report.status == "passed", report
    found = {check.name: check.detail for check in report.checks}
    assert found["torch"].startswith("version 2.10.0+cu128, cuda 12.8")
    place = "Ubuntu 24.04 with Python 3.12, without the driver or the vendor's base: trained on the CPU; "
    keep("cuda", "x86_64", place + "network none, read-only root, uid 12345", report, build_py)
    docker("image", "rm", "-f", TAG)
