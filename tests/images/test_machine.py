"""Which machine wheels are for: what fits it by name, and which ones a backend has."""

from __future__ import annotations

import pytest

from images.errors import UserError
from images.machine import Machine, fits, machines
from images.specfile import load_specs

X86 = Machine("3.11", "x86_64")
ARM = Machine("3.11", "aarch64")


@pytest.mark.parametrize(
    ("file", "machine", "expected"),
    [
        ("a-1-py3-none-any.whl", X86, True),
        ("a-1-py2.py3-none-any.whl", ARM, True),
        ("a-1-py2-none-any.whl", X86, False),
        ("a-1-1build-cp311-cp311-manylinux_2_28_x86_64.whl", X86, True),
        ("a-1-cp311-cp311-manylinux_2_28_x86_64.whl", ARM, False),
        ("a-1-cp312-cp312-manylinux_2_28_x86_64.whl", X86, False),
        ("a-1-cp311-cp311-musllinux_1_1_x86_64.whl", X86, False),
        ("a-1-cp311-cp311-manylinux_2_39_x86_64.whl", X86, False),
        ("a-1-cp39-abi3-manylinux1_x86_64.whl", X86, True),
        ("a-1-cp312-abi3-manylinux1_x86_64.whl", X86, False),
        ("a-1-cp39-cp39-manylinux1_x86_64.whl", X86, False),
        ("a-1-cp311-cp311-macosx_11_0_arm64.whl", ARM, False),
        ("a-1-cp313-cp313t-manylinux_2_28_x86_64.whl", Machine("3.13", "x86_64"), False),
        ("a.whl", X86, False),
    ],
)
def test_a_wheel_fits_a_machine_by_its_name(file: str, machine: Machine, expected: bool) -> None:
    assert fits(file, machine) is expected


def test_machines_are_this_one_or_what_the_backend_has() -> None:
    specs = load_specs()
    assert machines(specs["hygon"], [], None) == [Machine("3.10", "x86_64")]
    assert machines(specs["cpu"], ["aarch64", "x86_64"], "3.12") == [
        Machine("3.12", "aarch64"),
        Machine("3.12", "x86_64"),
    ]
    with pytest.raises(UserError) as caught:
        machines(specs["cpu"], ["sparc", "arm64"], "3.14")
    assert len(caught.value.message.splitlines()) == 3
