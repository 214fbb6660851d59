"""Following a build: short lines while it runs, the failing step and a cure when it fails."""

from __future__ import annotations

import io

import pytest

from images.progress import HEARTBEAT_SECONDS, Follower, cure, follow

# What `docker buildx build --progress=plain` printed, shortened.
GOOD = """\
#0 building with "default" instance using docker driver
#1 [internal] load build definition from Dockerfile
#1 transferring dockerfile: 5.12kB done
#1 DONE 0.0s
#5 [stage-1 1/7] FROM docker.io/library/base:cpu@sha256:a18d94
#5 CACHED
#6 [stage-1 2/7] RUN --mount=type=tmpfs --network=none     : 'make the virtual environment'; set -eu
#6 0.512 some output
#6 DONE 5.6s
#9 exporting to image
#9 exporting layers 35.2s done
#9 DONE 35.3s
"""
FAILED = """\
#8 [stage-1 3/7] RUN --network=none     : 'install the wheels of the lock'; set -eu
#8 1.250 Collecting accelerate==1.15.0
#8 2.500 WARNING: Retrying: SSLError(1, '[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed')
#8 9.000 ERROR: No matching distribution found for accelerate==1.15.0
#8 ERROR: process "/bin/sh -c : 'install'" did not complete successfully: exit code: 1
------
 > [stage-1 3/7] RUN --network=none     : 'install the wheels of the lock'; set -eu:
9.000 ERROR: No matching distribution found for accelerate==1.15.0
------
ERROR: failed to build: failed to solve: process "/bin/sh -c ..." did not complete successfully: exit code: 1
"""


def test_each_step_is_one_line_with_its_title_and_seconds() -> None:
    shown = io.StringIO()
    follower = follow(io.StringIO(GOOD), shown)
    assert [line.split() for line in shown.getvalue().splitlines()] == [
        ["1/7", "FROM", "docker.io/library/base:cpu@sha256:a18d94", "cached"],
        ["2/7", "make", "the", "virtual", "environment", "5.6", "s"],
        ["exporting", "to", "image", "35.3", "s"],
    ]
    assert follower.failure is None


def test_a_failing_step_is_named_with_its_last_lines_and_the_telling_cure() -> None:
    failure = follow(io.StringIO(FAILED), io.StringIO()).failure
    assert failure is not None
    assert failure.step == "install the wheels of the lock"
    assert failure.lines[-1] == "ERROR: No matching distribution found for accelerate==1.15.0"
    # The certificate is the cause, the missing distribution only its consequence.
    assert failure.cure == "behind a TLS proxy: --ca-bundle FILE"


def test_a_long_step_gives_a_sign_of_life() -> None:
    follower = Follower(clock=0.0)
    assert list(follower.feed("#6 [stage-1 2/7] RUN : 'install'; pip", 0.0)) == []
    assert list(follower.feed("#6 1.0 Collecting torch", 1.0)) == []
    assert list(follower.idle(HEARTBEAT_SECONDS - 1)) == []
    (line,) = follower.idle(HEARTBEAT_SECONDS + 1)
    assert "16 s so far: Collecting torch" in line
    assert list(follower.idle(HEARTBEAT_SECONDS + 2)) == []


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE", "--wheelhouse"),
        ("ERROR: Could not find a version that satisfies the requirement torch==2.13.0+cpu", "--wheelhouse"),
        (
            "Failed to establish a new connection: [Errno -3] Temporary failure in name resolution",
            "--network host",
        ),
        ("failed to resolve source metadata for docker.io/library/python: dial tcp", "--base-image"),
        ("OSError: [Errno 28] No space left on device", "docker builder prune"),
        ("OCI exporter is not supported for the docker driver", "containerd"),
    ],
)
def test_a_known_failure_says_what_to_try(words: str, option: str) -> None:
    assert option in cure(words)


def test_a_failure_nobody_foresaw_has_no_made_up_cure() -> None:
    assert cure("Segmentation fault") == ""
