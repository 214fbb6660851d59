"""Versions of packages, toolkits and drivers: their order, and ranges of them."""

from __future__ import annotations

import pytest

from images.version import closest, compare, matches, terms

ORDER = ["2.10.0.dev1", "2.10.0a1", "2.10.0rc2", "2.10", "2.10.0.post4", "2.10.0.post10", "2.10.1", "2.11"]
DRIVERS = [
    "5.7.1-V1.6.3",
    "6.3.6-V1.9.0",
    "6.3.6-V1.9.0c",
    "6.3.16-V1.1.0a",
    "6.3.30-V1.4.1",
    "6.3.30-V1.4.1a",
]
KITS = ["8.3.RC1", "8.3.RC2", "8.3.0", "8.5.0", "9.0.1", "26.0.RC1", "26.0.RC3", "26.1.0"]


@pytest.mark.parametrize("ordered", [ORDER, DRIVERS, KITS])
def test_versions_have_an_order(ordered: list[str]) -> None:
    for index, version in enumerate(ordered):
        assert [compare(version, other) for other in ordered] == [
            (index > place) - (index < place) for place in range(len(ordered))
        ]


def test_zeros_at_the_end_and_local_labels_make_no_other_version() -> None:
    assert compare("2.10", "2.10.0") == 0
    assert compare("2.10.0+cpu", "2.10.0") == 0
    assert compare("2.7.1+das.opt1.dtk2604", "2.7.1") == 0


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("2.10.0", "2.10.0", True),
        ("2.10.0.post4", "2.10.0", False),
        ("2.10.0+cpu", "==2.10.0", True),
        ("525.60.13", ">=525.60.13", True),
        ("525", ">=525.60.13", False),
        ("3", ">=1.31,<3", False),
        ("2.4.0", ">=1.31, <3", True),
        ("5.7.1-V1.7.0", ">=5.7.1-V1.0,<=5.7.1-V1.6.3", False),
        ("9.3.RC1", "<9.3", True),
        ("1", "!=1.0", False),
    ],
)
def test_a_version_fits_a_range_or_not(version: str, wanted: str, fits: bool) -> None:
    assert matches(version, wanted) is fits


@pytest.mark.parametrize("text", ["", "latest", ">=", "~=2.0", "2.0,", ">=2.6;<3"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a version or a range"):
        terms(text)


@pytest.mark.parametrize(
    ("version", "wanted", "end"),
    [
        ("5.24.0", ">=5.18.0,<=5.20.2", "5.20.2"),
        ("4.57", ">=5.18.0,<=5.20.2", "5.18.0"),
        ("3", ">=1.31,<3", None),
        ("2.0", "2.1", "2.1"),
        ("2.0", ">=1,<3", "2.0"),
    ],
)
def test_the_nearest_end_of_a_range_is_named_unless_it_is_open(
    version: str, wanted: str, end: str | None
) -> None:
    assert closest(version, wanted) == end
