"""What a spec says of its host: regular expressions that compile and find, sources, what build-info gets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from images.buildinfo import build_info
from images.specfile import load_specs, read_spec

Damaged = Callable[..., Path]


@pytest.mark.parametrize(
    ("change", "where", "what"),
    [
        (
            ("'^package_version=(?P<version>", "'^package_version=((?P<version>"),
            "driver.patterns",
            "is no regular",
        ),
        (("'^package_version=(?P<version>", "'^package_version=(?P<verson>"), "driver", "lack the group"),
        (("(?P<index>", "(?P<number>"), "telemetry.tools[0]", "lack the group (?P<index>...)"),
        (
            ("    - runtime: ascend\n", "    - runtime: ascend\n      cdi: a/b\n"),
            "engine_support[0]",
            "one of the two",
        ),
        (("    exit_code: 70\n", "    exit_code: 71\n"), "exit_code", "is 71"),
    ],
)
def test_a_fault_of_the_host_s_part_is_told_with_its_place(
    damaged: Damaged, change: tuple[str, str], where: str, what: str
) -> None:
    faults = "\n".join(str(fault) for fault in read_spec(damaged(change, name="ascend"))[1])
    assert where in faults
    assert what in faults


@pytest.mark.parametrize("image", list(load_specs()))
def test_the_run_side_gets_all_that_it_looks_for(image: str) -> None:
    spec = load_specs()[image]
    content = json.loads(json.dumps(build_info(spec, None)))
    assert content["image"] == image
    assert content["runtime"]["shm_size"] == spec.runtime.shm_size
    assert content["driver"]["minimum"] == spec.driver.minimum
    assert [error["cause"] for error in content["errors"]] == [error.cause for error in spec.errors]
    assert len(content["telemetry"]["tools"]) == len(spec.telemetry.tools)


def test_each_known_error_says_where_it_was_read_and_how_sure_that_is() -> None:
    for spec in load_specs().values():
        for error in spec.errors:
            assert re.search(r"\([VPTI]\)", error.source), (spec.image, error.pattern)


def test_a_cure_by_a_mount_names_a_mount_of_the_spec() -> None:
    """Doctor's option and the line of `docker run` are the same."""
    for spec in load_specs().values():
        for library in spec.runtime.libraries:
            given = library.given_by.removeprefix("-v ")
            assert given in [*spec.runtime.mounts, *spec.runtime.docker_options], spec.image
