"""Markers are evaluated for another machine, as pip would there."""

from __future__ import annotations

from itertools import product

import pytest
from packaging.markers import Marker

from images.markers import environment, holds

MARKERS = [
    "",
    "python_full_version < '3.11'",
    "python_version >= '3.10' and platform_machine == 'aarch64'",
    "(sys_platform == 'linux' or sys_platform == 'darwin') and platform_machine != 'x86_64'",
    "python_version == '3.1'",
    "'3.11' <= python_version",
    "python_full_version == '3.12.*'",
    "python_full_version != '3.12.*'",
    "python_version > '3.9' and python_version < '3.12.0'",
    "platform_machine in 'x86_64 amd64'",
    "platform_machine not in 'x86_64 amd64'",
    "implementation_name == 'pypy' or os_name == 'posix'",
]


@pytest.mark.parametrize("marker", MARKERS)
def test_a_marker_holds_where_the_library_of_pip_says_so(marker: str) -> None:
    for python, architecture in product(["3.9", "3.10", "3.11", "3.12"], ["x86_64", "aarch64"]):
        variables = environment(python, architecture)
        expected = Marker(marker).evaluate(variables) if marker else True
        assert holds(marker, variables) is expected, (python, architecture)


@pytest.mark.parametrize(
    "marker", ["python_version <", "colour == 'red'", "os_name", "1 == 1", "f('a') == 'b'"]
)
def test_what_is_no_marker_is_refused(marker: str) -> None:
    with pytest.raises(ValueError, match="marker|not known"):
        holds(marker, environment("3.11", "x86_64"))
