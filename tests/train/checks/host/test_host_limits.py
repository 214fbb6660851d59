"""Limits: shared memory, locked memory, control groups, NUMA and folders, read from a fake /proc and /sys."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_roots import fake_root, needs_of

from train.checks.host.finding import FAILED, FORBIDDEN, NOTE, PASSED, PRESENT, UNKNOWN
from train.checks.host.limits import look_at_limits, look_at_places, read_limits, shm_bytes, size_bytes
from train.checks.host.root import Root

LIMITS = """Limit                     Soft Limit           Hard Limit           Units
Max processes             unlimited            unlimited            processes
Max locked memory         {soft:<20} {soft:<20} bytes
"""
GIB = 1 << 30


@pytest.mark.parametrize(
    ("mounts", "size"),
    [
        ("shm /dev/shm tmpfs rw,nosuid,nodev,noexec,relatime,size=65536k,inode64 0 0", 64 << 20),
        ("tmpfs /dev/shm tmpfs rw,size=2g 0 0", 2 * GIB),
        ("tmpfs /dev/shm tmpfs rw,size=1048576 0 0", 1 << 20),
        ("tmpfs /dev/shm tmpfs rw,nosuid 0 0", 8 * GIB),
        ("tmpfs /dev/shm tmpfs rw,size=1g 0 0\nshm /dev/shm tmpfs rw,size=4g 0 0", 4 * GIB),
        ("proc /proc proc rw 0 0", None),
        ("", None),
    ],
)
def test_shared_memory_is_what_its_mount_says(tmp_path: Path, mounts: str, size: int | None) -> None:
    files = {"/proc/mounts": mounts, "/proc/meminfo": "MemTotal:       16777216 kB\n"}
    assert shm_bytes(fake_root(tmp_path, files)) == size


@pytest.mark.parametrize(
    ("size", "status"), [("65536k", FAILED), ("1048575k", FAILED), ("1g", PASSED), ("16g", PASSED)]
)
def test_an_engine_s_default_of_shared_memory_fails_with_the_option(
    tmp_path: Path, size: str, status: str
) -> None:
    root = fake_root(tmp_path, {"/proc/mounts": f"shm /dev/shm tmpfs rw,size={size} 0 0"})
    seen = next(one for one in look_at_limits(needs_of("ascend"), read_limits(root)))
    assert (seen.name, seen.status) == ("shared memory", status)
    assert seen.cure == ("--shm-size=16g" if status == FAILED else "")


def test_without_a_shm_in_sight_it_is_unknown(tmp_path: Path) -> None:
    seen = next(iter(look_at_limits(needs_of("cuda"), read_limits(Root(tmp_path)))))
    assert seen.status == UNKNOWN


@pytest.mark.parametrize(
    ("files", "bytes_"),
    [
        ({"/sys/fs/cgroup/memory.max": "8589934592\n"}, 8 * GIB),
        ({"/sys/fs/cgroup/memory.max": "max\n"}, 32 * GIB),
        ({"/sys/fs/cgroup/memory/memory.limit_in_bytes": "4294967296\n"}, 4 * GIB),
        ({"/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 32 * GIB),
        ({}, 32 * GIB),
    ],
)
def test_memory_is_the_control_group_s_limit_or_the_host_s(
    tmp_path: Path, files: dict[str, str], bytes_: int
) -> None:
    root = fake_root(tmp_path, {**files, "/proc/meminfo": "MemTotal:       33554432 kB\n"})
    assert read_limits(root).memory_bytes == bytes_


@pytest.mark.parametrize(("soft", "value"), [("unlimited", -1), ("8388608", 8 << 20), ("?", None)])
def test_locked_memory_is_read(tmp_path: Path, soft: str, value: int | None) -> None:
    root = fake_root(tmp_path, {"/proc/self/limits": LIMITS.format(soft=soft)})
    assert read_limits(root).memlock_bytes == value


def test_options_for_some_hosts_are_named_on_those_alone(tmp_path: Path) -> None:
    """Each condition by itself; a plain host gets none of the vendor's three."""
    needs = needs_of("hygon")
    plain = {"/proc/self/limits": LIMITS.format(soft="unlimited"), "/proc/self/status": "Seccomp:\t0\n"}
    numa = {f"/sys/devices/system/node/node{number}/cpulist": "0" for number in range(2)}
    cases = {
        "plain": ({}, set()),
        "memlock": ({"/proc/self/limits": LIMITS.format(soft="65536")}, {"memlock_limited"}),
        "filtered": ({"/proc/self/status": "Seccomp:\t2\n"}, set()),
        "filtered-numa": ({"/proc/self/status": "Seccomp:\t2\n", **numa}, {"memory_policy_filtered"}),
        "traced": ({"/proc/sys/kernel/yama/ptrace_scope": "1\n"}, {"tracing_limited"}),
    }
    options = {one["when"]: one["option"] for one in needs.runtime["conditional_options"]}
    for name, (files, conditions) in cases.items():
        limits = read_limits(fake_root(tmp_path / name, {**plain, **files}))
        assert limits.conditions() == conditions, name
        named = {one.name for one in look_at_limits(needs, limits) if one.name.startswith("--")}
        assert named == {options[condition] for condition in conditions}, name


def test_a_place_for_temporary_files_is_needed_and_a_home_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setenv("HOME", "/home/me")
    nothing, home = look_at_places(Root(tmp_path))
    assert (nothing.status, nothing.cure) == (FORBIDDEN, "--tmpfs=/tmp")
    assert (home.status, home.needed) == (NOTE, False)
    (tmp_path / "dev/shm").mkdir(parents=True)
    (tmp_path / "home/me").mkdir(parents=True)
    (place,) = look_at_places(Root(tmp_path))
    assert (place.status, place.name) == (PRESENT, "/dev/shm")


def test_sizes() -> None:
    assert [size_bytes(text) for text in ("512m", "16g", "64k")] == [512 << 20, 16 * GIB, 64 << 10]
