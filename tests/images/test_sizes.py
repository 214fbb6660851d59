"""`build.py sizes`: layers of a real layout are measured, wheels are added up, and each says which it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from build_command import BuildCommand
from made_layout import layer, write_layout

from images import sizes, wheelsizes
from images.errors import EXIT_DATA, UserError
from images.lockfile import read_lock
from images.machine import Machine
from images.specfile import load_specs

SPECS = load_specs()
SITE = "opt/isotune/lib/python3.11/site-packages"
FILES = {
    f"{SITE}/torch/a.so": {"content": b"x" * 3000},
    f"{SITE}/torch/__pycache__/a.cpython-311.pyc": {"content": b"x" * 500},
    f"{SITE}/numpy.libs/b.so": {"content": b"x" * 200},
    f"{SITE}/numpy/c.py": {"content": b"x" * 20},
    f"{SITE}/numpy-1.0.dist-info/RECORD": {"content": b"x" * 7},
    "etc/passwd": {"content": b"x"},
}
# Recorded from uv 0.13, shortened: a wheel for each machine, and one whose hash the lock has not.
PYLOCK = """
[[packages]]
name = "torch"
wheels = [
    { url = "https://x.org/torch-2.14.1-cp312-cp312-manylinux_2_28_x86_64.whl", size = 70, hashes = { sha256 = "x86_64" } },
    { url = "https://x.org/torch-2.14.1-cp312-cp312-manylinux_2_28_aarch64.whl", size = 900, hashes = { sha256 = "aarch64" } },
    { url = "https://x.org/torch-2.14.1-2-cp312-cp312-manylinux_2_28_x86_64.whl", size = 5000, hashes = { sha256 = "other" } },
]
"""  # noqa: E501


def labelled(lock_id: str) -> dict[str, object]:
    return {"architecture": "amd64", "config": {"Labels": {"isotune.lock-id": lock_id}}}


def test_a_layout_is_measured_by_layer_and_by_package(tmp_path: Path) -> None:
    lock = read_lock("cpu")
    assert lock
    base = layer({"bin/sh": {"content": b"x" * 9}})
    packed = layer(FILES)
    write_layout(tmp_path / "layout", [base, packed], **labelled(lock.lock_id))
    (found,) = sizes.measure(SPECS["cpu"], tmp_path / "layout", "a stand-in base")
    assert (found.architecture, found.how, found.lock_id) == ("x86_64", "measured", lock.lock_id)
    assert [(item.title, item.unpacked_bytes, item.files) for item in found.layers] == [
        ("make the files", 9, 1),
        ("add more", 3728, 6),
    ]
    assert found.compressed_bytes == len(base) + len(packed)
    assert [(item.name, item.bytes, item.byte_code_bytes) for item in found.packages] == [
        ("torch", 3500, 500),
        ("numpy", 220, 0),
        ("metadata", 7, 0),
    ]
    path = sizes.write_sizes(found, tmp_path / "sizes")
    assert path.name == "cpu-x86_64.json"
    assert sizes.read_sizes(SPECS["cpu"], tmp_path / "sizes") == [found]
    text = sizes.details(found)
    assert "site-packages: 0.0 MB, of which byte code 0.0 MB" in text
    assert "a stand-in base" in text.splitlines()[0]


def test_a_layout_of_another_lock_is_refused(tmp_path: Path) -> None:
    write_layout(tmp_path / "layout", [layer(FILES)], **labelled("000000000000"))
    with pytest.raises(UserError, match=r"is of lock 000000000000, that of cpu is") as caught:
        sizes.measure(SPECS["cpu"], tmp_path / "layout", "x")
    assert caught.value.exit_code == EXIT_DATA


def test_wheels_are_added_up_by_their_locked_hashes_for_one_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = read_lock("cuda13")
    assert lock
    text = PYLOCK.replace('"other"', f'"{"0" * 64}"')
    for item in lock.wheels:
        if item["python"] == "cp312":
            text = text.replace(f'"{item["architecture"]}"', f'"{item["sha256"]}"')
    monkeypatch.setattr(wheelsizes, "_pylock", lambda pins, python: text)
    known, unknown = wheelsizes.download_sizes(SPECS["cuda13"], lock, Machine("3.12", "x86_64"))
    assert known == {"torch": 70}
    assert "numpy 1.26.4" in unknown


def test_a_wheel_of_a_local_version_is_told_to_be_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def pylock(pins: list[wheelsizes.Pin], python: str) -> str:
        asked.extend(pin.version for pin in pins)
        return ""

    monkeypatch.setattr(wheelsizes, "_pylock", pylock)
    found = sizes.compute(SPECS["ascend"], "x86_64")
    assert "torch 2.10.0+cpu" in found.unknown
    assert asked
    assert not any("+" in version for version in asked)
    assert "not counted, its size is unknown: torch 2.10.0+cpu" in sizes.details(found)


def test_what_was_measured_is_not_replaced_by_a_computed_figure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(wheelsizes, "_pylock", lambda pins, python: "")
    lock = read_lock("cpu")
    assert lock
    write_layout(tmp_path / "layout", [layer(FILES)], **labelled(lock.lock_id))
    (measured,) = sizes.measure(SPECS["cpu"], tmp_path / "layout", "x")
    found = sizes.compute_unmeasured(SPECS["cpu"], tmp_path / "sizes")
    assert [item.architecture for item in found] == ["x86_64", "aarch64"]
    sizes.write_sizes(measured, tmp_path / "sizes")
    found = sizes.compute_unmeasured(SPECS["cpu"], tmp_path / "sizes")
    assert [item.architecture for item in found] == ["aarch64"]
    # Of an older lock it counts no more.
    sizes.write_sizes(measured.model_copy(update={"lock_id": "0" * 12}), tmp_path / "sizes")
    assert len(sizes.compute_unmeasured(SPECS["cpu"], tmp_path / "sizes")) == 2


def test_every_image_and_architecture_has_a_line_and_says_how_it_is_known() -> None:
    lines = sizes.table(SPECS.values()).splitlines()[1:]
    pairs = [(spec.image, machine) for spec in SPECS.values() for machine in spec.architectures]
    assert [tuple(line.split()[:2]) for line in lines] == pairs
    assert all(word in line for line in lines for word in ["unknown" if line.endswith("-") else "ed: "])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--compute"], "--backend is missing"),
        (["--backend=cpu", "--measure=oci:x"], "--measure and --place go together"),
        (["--backend=cpu", "--measure=x", "--place=y"], "'x' is not oci:PATH"),
    ],
)
def test_wrong_options_of_sizes_are_told(build_py: BuildCommand, options: list[str], told: str) -> None:
    done = build_py("sizes", *options)
    assert (done.returncode, done.stdout) == (64, "")
    assert told in done.stderr
