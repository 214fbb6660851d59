"""Limits of a container: shared memory, locked memory, memory, NUMA nodes, and places that can be written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from train.checks.host.finding import FAILED, FORBIDDEN, NOTE, PASSED, PRESENT, UNKNOWN, Seen
from train.checks.host.needs import Needs
from train.checks.host.root import Root

UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
UNLIMITED = "unlimited"
LARGEST_LIMIT = 1 << 60
"""Control groups say `no limit` by a number near 2**63."""
LEAST_SHM_BYTES = 1 << 30
"""Of an engine's default, 64 MiB, workers and collectives run out; what a spec names is for all cards of a
host."""


@dataclass(frozen=True)
class Limits:
    """What /proc and /sys say; None where they do not. memlock_bytes: -1 for no limit."""

    shm_bytes: int | None
    memlock_bytes: int | None
    memory_bytes: int | None
    numa_nodes: int
    is_filtered: bool
    is_tracing_limited: bool

    def conditions(self) -> set[str]:
        """The conditions of the spec's conditional_options that hold here."""
        return {
            name
            for name, holds in {
                "memlock_limited": self.memlock_bytes not in (None, -1),
                "memory_policy_filtered": self.is_filtered and self.numa_nodes > 1,
                "tracing_limited": self.is_tracing_limited,
            }.items()
            if holds
        }


def read_limits(root: Root) -> Limits:
    """The limits of the process that asks, or of the machine whose root this is."""
    status = root.read("/proc/self/status")
    scope = root.read("/proc/sys/kernel/yama/ptrace_scope").strip()
    return Limits(
        shm_bytes(root),
        _memlock(root.read("/proc/self/limits")),
        _memory(root),
        len(root.glob("/sys/devices/system/node/node[0-9]*")),
        re.search(r"^Seccomp:\s*2", status, re.MULTILINE) is not None,
        scope.isdigit() and int(scope) > 0,
    )


def shm_bytes(root: Root) -> int | None:
    """The size of /dev/shm: as its mount says, or half of the host's memory, as the kernel has it."""
    for line in reversed(root.read("/proc/mounts").splitlines()):
        fields = line.split()
        if len(fields) > 3 and fields[1] == "/dev/shm":
            size = re.search(r"(?:^|,)size=(\d+)([kmgt]?)", fields[3])
            return int(size[1]) * UNITS[size[2]] if size else _half_of_memory(root)
    return None


def _half_of_memory(root: Root) -> int | None:
    total = _meminfo(root)
    return total // 2 if total else None


def _meminfo(root: Root) -> int | None:
    match = re.search(r"^MemTotal:\s*(\d+) kB", root.read("/proc/meminfo"), re.MULTILINE)
    return int(match[1]) << 10 if match else None


def _memlock(text: str) -> int | None:
    match = re.search(r"^Max locked memory\s+(\S+)", text, re.MULTILINE)
    if not match or not (match[1] == UNLIMITED or match[1].isdigit()):
        return None
    return -1 if match[1] == UNLIMITED else int(match[1])


def _memory(root: Root) -> int | None:
    """The limit of the control group, versions 2 and 1; the host's memory where there is none."""
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        text = root.read(path).strip()
        if text.isdigit() and int(text) < LARGEST_LIMIT:
            return int(text)
    return _meminfo(root)


def look_at_limits(needs: Needs, limits: Limits) -> Iterator[Seen]:
    """Each limit with its figure. One that stops training is failed; one that some hosts need is a note."""
    wanted = needs.runtime["shm_size"]
    cure = f"--shm-size={wanted}"
    if limits.shm_bytes is None:
        yield Seen("limit", "shared memory", UNKNOWN, "no /dev/shm in /proc/mounts", cure)
    else:
        least = min(LEAST_SHM_BYTES, size_bytes(wanted))
        small = limits.shm_bytes < least
        detail = f"{_gib(limits.shm_bytes)}; this image names {wanted}"
        yield Seen("limit", "shared memory", FAILED if small else PASSED, detail, cure if small else "")
    memory = "unknown" if limits.memory_bytes is None else _gib(limits.memory_bytes)
    yield Seen("limit", "memory", NOTE, memory, needed=False)
    yield Seen("limit", "locked memory", NOTE, _memlock_words(limits), needed=False)
    yield Seen("limit", "NUMA nodes", NOTE, str(limits.numa_nodes or UNKNOWN), needed=False)
    conditions = limits.conditions()
    for option in needs.runtime["conditional_options"]:
        if option["when"] in conditions:
            words = f"{option['when'].replace('_', ' ')}: {option['why']}"
            yield Seen("limit", option["option"], NOTE, words, option["option"], needed=False)


def _memlock_words(limits: Limits) -> str:
    if limits.memlock_bytes is None:
        return UNKNOWN
    return UNLIMITED if limits.memlock_bytes < 0 else f"{limits.memlock_bytes / 2**20:.4g} MiB"


def size_bytes(text: str) -> int:
    """Bytes of a size such as 16g."""
    return int(text[:-1]) * UNITS[text[-1]]


def _gib(count: int) -> str:
    return f"{count / 2**30:.4g} GiB"


def look_at_places(root: Root) -> Iterator[Seen]:
    """Where this user can write: a temporary folder is needed, a home for caches is better."""
    temporary = dict.fromkeys([os.environ.get("TMPDIR") or "/tmp", "/tmp", "/var/tmp", "/dev/shm"])
    usable = [place for place in temporary if _is_writable(root, place)]
    if usable:
        yield Seen("place", usable[0], PRESENT, "temporary files can be written")
    else:
        detail = f"none of {', '.join(temporary)} can be written"
        yield Seen("place", "temporary files", FORBIDDEN, detail, "--tmpfs=/tmp")
    home = os.environ.get("HOME", "")
    if not home or not _is_writable(root, home):
        detail = "no home that can be written: caches go elsewhere"
        yield Seen("place", home or "HOME", NOTE, detail, needed=False)


def _is_writable(root: Root, place: str) -> bool:
    path = root.at(place)
    return path.is_dir() and os.access(path, os.W_OK | os.X_OK)
