"""Licences: only what a package's own metadata says, and an SPDX name only where it can mean one licence."""

from __future__ import annotations

from email import message_from_string

import pytest

from images.licences import NONE_KNOWN, Licence, entries, licence_list, of_debian, of_python

CLASSIFIER = "Classifier: License :: OSI Approved :: "


@pytest.mark.parametrize(
    ("metadata", "wanted"),
    [
        ("License-Expression: Apache-2.0 AND CNRI-Python", ["expression Apache-2.0 AND CNRI-Python"]),
        ("License-Expression: MIT-CMU\nLicense: BSD", ["expression MIT-CMU"]),
        ("License: Apache 2.0 License", ["id Apache-2.0"]),
        ("License: MPL-2.0 AND MIT", ["expression MPL-2.0 AND MIT"]),
        (f"License: Apache\n{CLASSIFIER}Apache Software License", ["name Apache Software License"]),
        (f"License: BSD 3-Clause License\n  Copyright (c)\n{CLASSIFIER}BSD License", ["name BSD License"]),
        (f"{CLASSIFIER}MIT License", ["id MIT"]),
        (
            f"License: Dual License\n{CLASSIFIER}BSD License\n{CLASSIFIER}Apache Software License",
            ["name BSD License", "name Apache Software License"],
        ),
        ("License: see the file", ["name see the file"]),
        ("Classifier: License :: OSI Approved", []),
        ("License: UNKNOWN", []),
        ("License: " + "words " * 50, []),
        ("Name: nothing", []),
    ],
)
def test_a_python_package_s_metadata_is_taken_at_its_word(metadata: str, wanted: list[str]) -> None:
    found = of_python(message_from_string(f"{metadata}\n"))
    assert [f"{one.kind} {one.words}" for one in found] == wanted


def test_a_copyright_file_in_another_form_is_not_guessed_at() -> None:
    assert of_debian("This package is free.\nLicense: GPL-2+\n") == []
    form = "Format: http://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n"
    text = (
        f"{form}\nFiles: *\nLicense: GPL-2+\n\nFiles: a\nLicense:  MIT \n text\n\nLicense: GPL-2+\n words\n"
    )
    assert of_debian(text) == [Licence("name", "GPL-2+"), Licence("id", "MIT")]


def test_an_expression_stands_alone_and_names_stand_together() -> None:
    assert entries([Licence("expression", "MIT")]) == [{"expression": "MIT"}]
    both = [Licence("id", "MIT"), Licence("name", "BSD")]
    assert entries(both) == [{"license": {"id": "MIT"}}, {"license": {"name": "BSD"}}]


def test_the_list_begins_with_the_packages_of_which_nothing_is_known() -> None:
    components = [
        {"name": "b", "version": "2", "purl": "pkg:pypi/b@2", "licenses": [{"license": {"id": "MIT"}}]},
        {"name": "a", "version": "1", "purl": "pkg:pypi/a@1", "licenses": [{"license": {"id": "MIT"}}]},
        {"name": "c", "version": "3", "purl": "pkg:deb/debian/c@3"},
        {"name": "d", "version": "4", "purl": "pkg:pypi/d@4", "licenses": [{"expression": "Apache-2.0"}]},
    ]
    lines = licence_list("Title", components).splitlines()
    assert lines[0] == "Title"
    begin = lines.index(f"{NONE_KNOWN} (1)")
    assert lines[begin:] == [
        f"{NONE_KNOWN} (1)", "  deb  c 3", "",
        "Apache-2.0 (1)", "  pypi  d 4", "",
        "MIT (2)", "  pypi  a 1", "  pypi  b 2",
    ]  # fmt: skip


def test_a_list_without_gaps_says_so_too() -> None:
    assert f"{NONE_KNOWN} (0)" in licence_list("Title", [])
