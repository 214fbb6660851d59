"""Nodes, mounts, libraries and groups on fake roots: there, missing, closed, and which group opens them."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_roots import STRANGER, WITH_DEVICE, fake_root, needs_of, whole_host

from train.checks.host.finding import FORBIDDEN, MISSING, PRESENT, Seen, exit_code
from train.checks.host.nodes import (
    cards,
    gids,
    look_at_libraries,
    look_at_mounts,
    look_at_nodes,
    named_gids,
)
from train.checks.host.root import Identity, Root

OUTSIDER = Identity(STRANGER.uid, frozenset([876_543]))
"""Not even in group 0, which owns the files where root runs the tests."""


def test_cards_are_the_numbers_of_their_nodes(tmp_path: Path) -> None:
    files = dict.fromkeys(["/dev/davinci0", "/dev/davinci10", "/dev/davinci7", "/dev/davinci_manager"], "")
    assert cards(needs_of("ascend"), fake_root(tmp_path, files)) == [0, 7, 10]


@pytest.mark.parametrize("image", WITH_DEVICE)
def test_each_node_of_an_empty_root_is_missing_with_the_option_that_brings_it(
    tmp_path: Path, image: str
) -> None:
    needs = needs_of(image)
    seen = [one for one in look_at_nodes(needs, Root(tmp_path)) if one.needed]
    assert [one.name for one in seen] == needs.nodes
    assert {one.status for one in seen} == {MISSING}
    assert all(one.cure.startswith("--") and "{index}" not in one.cure for one in seen)


@pytest.mark.parametrize("image", WITH_DEVICE)
def test_nothing_is_missing_on_a_whole_host(tmp_path: Path, image: str) -> None:
    needs, root = needs_of(image), fake_root(tmp_path, whole_host(image))
    found = [*look_at_nodes(needs, root), *look_at_mounts(needs, root, False)]
    found += look_at_libraries(needs, root, False)
    assert {one.status for one in found if one.needed} == {PRESENT}


def test_a_closed_node_names_the_number_of_the_group_that_opens_it(tmp_path: Path) -> None:
    root = fake_root(tmp_path, {"/dev/kfd": "", "/dev/dri/renderD128": "", "/dev/dri/card0": ""})
    (tmp_path / "dev/kfd").chmod(0o660)
    gid = (tmp_path / "dev/kfd").stat().st_gid
    seen = {one.name: one for one in look_at_nodes(needs_of("hygon"), Root(tmp_path, OUTSIDER))}
    assert seen["/dev/kfd"].status == FORBIDDEN
    assert seen["/dev/kfd"].cure == f"--group-add={gid}"
    assert f"group {gid}" in seen["/dev/kfd"].detail
    assert seen["/dev/dri/renderD128"].status == PRESENT
    member = Identity(STRANGER.uid, frozenset([gid]))
    assert {one.status for one in look_at_nodes(needs_of("hygon"), Root(tmp_path, member)) if one.needed} == {
        PRESENT
    }
    assert root.user == STRANGER


def test_a_node_that_no_group_may_open_is_told_so(tmp_path: Path) -> None:
    fake_root(tmp_path, {"/dev/kfd": ""})
    (tmp_path / "dev/kfd").chmod(0o600)
    seen = {one.name: one for one in look_at_nodes(needs_of("hygon"), Root(tmp_path, OUTSIDER))}
    assert seen["/dev/kfd"].status == FORBIDDEN
    assert "--group-add" not in seen["/dev/kfd"].cure
    assert "--user=0" in seen["/dev/kfd"].cure


def test_a_group_that_may_only_read_is_no_cure(tmp_path: Path) -> None:
    fake_root(tmp_path, {"/dev/kfd": ""})
    (tmp_path / "dev/kfd").chmod(0o640)
    seen = {one.name: one for one in look_at_nodes(needs_of("hygon"), Root(tmp_path, OUTSIDER))}
    assert "--group-add" not in seen["/dev/kfd"].cure


def test_reading_alone_is_not_enough_for_a_node(tmp_path: Path) -> None:
    fake_root(tmp_path, {"/dev/kfd": ""})
    (tmp_path / "dev/kfd").chmod(0o664)
    seen = {one.name: one.status for one in look_at_nodes(needs_of("hygon"), Root(tmp_path, OUTSIDER))}
    assert seen["/dev/kfd"] == FORBIDDEN


def test_the_folder_that_an_engine_makes_for_an_absent_path_is_no_node_and_no_mount(tmp_path: Path) -> None:
    for path in (
        "dev/davinci0",
        "dev/davinci_manager",
        "etc/ascend_install.info",
        "usr/local/Ascend/driver/lib64",
    ):
        (tmp_path / path).mkdir(parents=True)
    needs, root = needs_of("ascend"), Root(tmp_path)
    found = [*look_at_nodes(needs, root), *look_at_mounts(needs, root, False)]
    assert {one.status for one in found if one.needed} == {MISSING}
    told = [one.name for one in found if "empty folder" in one.detail]
    assert told == [
        "/dev/davinci0",
        "/dev/davinci_manager",
        "/usr/local/Ascend/driver/lib64",
        "/etc/ascend_install.info",
    ]


def test_a_library_is_found_where_ld_library_path_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = fake_root(tmp_path, {"/opt/own/libcuda.so.1": ""})
    (missing,) = look_at_libraries(needs_of("cuda"), root, False)
    assert (missing.status, missing.cure) == (MISSING, "--gpus=all")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/none::/opt/own")
    (found,) = look_at_libraries(needs_of("cuda"), root, False)
    assert (found.status, found.name) == (PRESENT, "/opt/own/libcuda.so.1")


def test_a_library_that_only_a_group_reads_is_closed_in_a_container_and_no_fault_of_the_host(
    tmp_path: Path,
) -> None:
    fake_root(tmp_path, whole_host("ascend"))
    library = tmp_path / "usr/local/Ascend/driver/lib64/driver/libascend_hal.so"
    library.chmod(0o440)
    root = Root(tmp_path, OUTSIDER)
    (closed,) = look_at_libraries(needs_of("ascend"), root, False)
    assert closed.status == FORBIDDEN
    assert closed.cure == f"--group-add={library.stat().st_gid}"
    (on_host,) = look_at_libraries(needs_of("ascend"), root, True)
    assert on_host.status == PRESENT


def test_groups_are_those_that_open_what_others_may_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = fake_root(tmp_path, whole_host("hygon"))
    assert gids(needs_of("hygon"), root) == []
    (tmp_path / "dev/kfd").chmod(0o660)
    (tmp_path / "dev/dri/renderD128").chmod(0o660)
    owners = {"/dev/kfd": (0o660, 109), "/dev/dri/renderD128": (0o660, 992), "/dev/dri/card0": (0o660, 0)}
    monkeypatch.setattr(Root, "owner", lambda self, path: owners.get(path))
    assert gids(needs_of("hygon"), root) == [109, 992]


def test_a_named_group_has_the_number_that_this_host_gives_it(tmp_path: Path) -> None:
    text = "root:x:0:\nHwHiAiUser:x:1017:me\nvideo:x:44:\nbroken\nHwHiAiUser2:x:y:\n"
    assert named_gids(needs_of("ascend"), fake_root(tmp_path, {"/etc/group": text})) == {"HwHiAiUser": 1017}


def test_what_is_not_needed_decides_nothing() -> None:
    tool, node = Seen("tool", "smi", MISSING, needed=False), Seen("device", "/dev/kfd", PRESENT)
    assert exit_code([tool, node]) == 0
    assert exit_code([Seen("device", "/dev/kfd", MISSING), node]) == 69
