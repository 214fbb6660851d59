"""Two images that differ are compared file by file: each way to differ is made by hand and told."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from made_layout import FILES, Files, add_blob, changed, image, layer, write_layout

from images.errors import UserError
from images.layout import compare, digest_of


@pytest.fixture
def layouts(tmp_path: Path) -> Callable[..., list[str]]:
    """Make two layouts from (layers, config) each, and return what differs."""

    def make(*images: tuple[list[bytes], dict[str, Any]]) -> list[str]:
        for name, (layers, config) in zip(("first", "second"), images, strict=True):
            write_layout(tmp_path / name, layers, **config)
        return [str(difference) for difference in compare(tmp_path / "first", tmp_path / "second")]

    return make


WAYS = [
    (changed("opt/a", content=b"three"), ["opt/a: content: 3 bytes, 5 bytes"]),
    (changed("opt/a", content=b"two"), ["opt/a: content: 3 bytes, 3 bytes"]),
    (changed("opt/a", mode=0o755), ["opt/a: mode: 0644, 0755"]),
    (changed("opt", mode=0o700), ["opt: mode: 0755, 0700"]),
    (changed("opt/a", mtime=1767225601), ["opt/a: mtime: 1767225600, 1767225601"]),
    (changed("opt/a", mtime=1767225600.5), ["opt/a: mtime: 1767225600, 1767225600.5"]),
    (changed("opt/a", uid=1000, gid=0), ["opt/a: owner: 0:0, 1000:0"]),
    (changed("opt/b", linkname="c"), ["opt/b: link: a, c"]),
    (changed("opt/c", content=b"new"), ["opt/c: only in the second"]),
    ({key: FILES[key] for key in ("opt", "opt/b")}, ["opt/a: only in the first"]),
    (
        changed("opt/b", type=tarfile.REGTYPE, linkname=""),
        ["opt/b: type: symbolic link, file", "opt/b: link: a, "],
    ),
    (
        changed("opt/a", pax_headers={"SCHILY.xattr.security.capability": "x"}),
        ["opt/a: extended attributes: [], [('SCHILY.xattr.security.capability', 'x')]"],
    ),
    (
        {**changed("opt/a", mode=0o600), "opt/z": {}},
        ["opt/a: mode: 0644, 0600", "opt/z: only in the second"],
    ),
]


@pytest.mark.parametrize(("files", "expected"), WAYS)
def test_each_way_to_differ_is_told_with_layer_and_path(
    layouts: Callable[..., list[str]], files: Files, expected: list[str]
) -> None:
    found = layouts(([layer(FILES), layer(FILES)], {}), ([layer(FILES), layer(files)], {}))
    assert found == [f"layer 2 (add more): {line}" for line in expected]


def test_the_same_layouts_have_no_difference(layouts: Callable[..., list[str]]) -> None:
    assert layouts(([layer(FILES)], {}), ([layer(FILES)], {})) == []


def test_another_order_and_another_packing_are_told(layouts: Callable[..., list[str]]) -> None:
    other = layer(FILES, order=["opt", "opt/b", "opt/a"])
    packed = [gzip.compress(layer(FILES), level, mtime=0) for level in (1, 9)]
    assert layouts(([layer(FILES), packed[0]], {}), ([other, packed[1]], {})) == [
        "layer 1 (make the files): same files in another order",
        "layer 2 (add more): same files, packed otherwise",
    ]


def test_a_compression_that_is_not_read_is_said(layouts: Callable[..., list[str]]) -> None:
    found = layouts(([b"\x28\xb5\x2f\xfd" + b"0" * 600], {}), ([layer(FILES)], {}))
    assert found == ["layer 1 (make the files): differs; its compression is not read here"]


def test_layers_that_only_one_image_has_are_told(layouts: Callable[..., list[str]]) -> None:
    found = layouts(([layer(FILES), layer(FILES)], {}), ([layer(FILES)], {}))
    assert "layer 2 (add more): only in the first" in found
    assert any(line.startswith("configuration: history[2]: {") for line in found)


def test_the_configuration_is_compared_key_by_key(layouts: Callable[..., list[str]]) -> None:
    configs = [
        {"config": {"Env": ["A=1", f"B={value}"]}, "created": "2026", "rootfs": {"diff_ids": [value]}}
        for value in ("2", "3")
    ]
    assert layouts(*(([layer(FILES)], config) for config in configs)) == [
        'configuration: config.Env[1]: "B=2", "B=3"'
    ]


def test_an_image_of_several_platforms_is_compared_on_each(tmp_path: Path) -> None:
    for name, mode in (("first", 0o644), ("second", 0o600)):
        layout = tmp_path / name
        manifests = []
        for architecture, files in (("amd64", FILES), ("arm64", changed("opt/a", mode=mode))):
            platform = {"os": "linux", "architecture": architecture}
            manifests.append(image(layout, [layer(files)]) | {"platform": platform})
        index = add_blob(layout, json.dumps({"manifests": manifests}).encode())
        (layout / "index.json").write_text(json.dumps({"manifests": [index]}), encoding="utf-8")
    assert [str(found) for found in compare(tmp_path / "first", tmp_path / "second")] == [
        "linux/arm64 layer 1 (make the files): opt/a: mode: 0644, 0600"
    ]


@pytest.mark.parametrize("text", [None, "{", "{}", '{"manifests": []}'])
def test_what_is_no_layout_is_refused(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "index.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        digest_of(tmp_path)
    assert caught.value.exit_code == 65
    assert str(tmp_path) in caught.value.message


@pytest.mark.engine
def test_a_difference_of_two_real_layouts_is_found(build_options: list[str], tmp_path: Path) -> None:
    """As BuildKit writes them, compressed; a mode that differs in the second."""
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY a b /opt/\n", encoding="utf-8")
    for name, mode in (("first", 0o644), ("second", 0o755)):
        for file in ("a", "b"):
            (tmp_path / file).write_text("same", encoding="utf-8")
            os.utime(tmp_path / file, (1000, 1000))
        (tmp_path / "b").chmod(mode)
        output = f"--output=type=oci,tar=false,dest={tmp_path / name},rewrite-timestamp=true"
        command = ["docker", "buildx", "build", "--provenance=false", "--build-arg=SOURCE_DATE_EPOCH=1000"]
        subprocess.run([*command, output, "."], cwd=tmp_path, capture_output=True, check=True)
    found = [str(difference) for difference in compare(tmp_path / "first", tmp_path / "second")]
    assert found == ["layer 1: opt/b: mode: 0644, 0755"]


def test_an_image_with_two_names_is_one_image_and_two_images_are_none(tmp_path: Path) -> None:
    """As the engine writes it: an entry for each name."""
    digest = write_layout(tmp_path, [layer(FILES)])
    index = json.loads((tmp_path / "index.json").read_text(encoding="utf-8"))
    (entry,) = index["manifests"]
    for other, good in ((digest, True), (f"sha256:{'1' * 64}", False)):
        index["manifests"] = [entry, {**entry, "digest": other}]
        (tmp_path / "index.json").write_text(json.dumps(index), encoding="utf-8")
        if good:
            assert digest_of(tmp_path) == digest
        else:
            with pytest.raises(UserError, match="not an OCI layout of one image"):
                digest_of(tmp_path)
