"""What `train verify --device` asks of the host: nodes, groups and permissions, and the driver's range."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from train.checks.host.driver import look_at_driver, read_driver
from train.checks.host.finding import FAILED, MISSING, PASSED, PRESENT, Seen
from train.checks.host.needs import Needs, read_needs
from train.checks.host.nodes import look_at_libraries, look_at_mounts, look_at_nodes
from train.checks.host.root import Root
from train.checks.report import CheckFailed, Skipped
from train.errors import UserError
from train.image import BuildInfo


def host_checks(image: BuildInfo | None, root: Root | None = None) -> Iterator[tuple[str, Callable[[], str]]]:
    """Name and function of each check. root: another machine's than this one's."""
    yield "nodes and groups", partial(nodes_are_open, image, root)
    yield "driver in range", partial(driver_is_in_range, image, root)


def nodes_are_open(image: BuildInfo | None, root: Root | None = None) -> str:
    """Every node, mount and library of the driver is there and open to this user.

    Skipped where there is no device at all; CheckFailed names everything that is missing with its cure.
    """
    needs, root = _needs(image, root)
    nodes = [one for one in look_at_nodes(needs, root) if one.needed]
    _require_any(nodes)
    seen = [*nodes, *look_at_mounts(needs, root, False), *look_at_libraries(needs, root, False)]
    wrong = [f"{one.kind} {one.name} {one.status}: {one.cure}" for one in seen if one.status != PRESENT]
    if wrong:
        raise CheckFailed("; ".join(wrong))
    return f"{len(seen)} nodes, mounts and libraries are there and open"


def driver_is_in_range(image: BuildInfo | None, root: Root | None = None) -> str:
    """The driver's version is one that the matrix takes; one that cannot be read is skipped, never passed."""
    needs, root = _needs(image, root)
    _require_any([one for one in look_at_nodes(needs, root) if one.needed])
    seen = look_at_driver(needs, read_driver(needs, root))
    words = f"{seen.name}: {seen.detail}"
    if seen.status == FAILED:
        raise CheckFailed(f"{words}; {seen.cure}")
    if seen.status != PASSED:
        raise Skipped(f"unknown: {words}")
    return words


def _needs(image: BuildInfo | None, root: Root | None) -> tuple[Needs, Root]:
    if image is None:
        raise Skipped("there is no build-info.json: what this environment needs of its host is not known")
    try:
        needs = read_needs(image)
    except UserError as fault:
        raise Skipped(f"{fault.message}; {fault.hint}") from None
    if not needs.has_device:
        raise Skipped("no device: the cpu needs nothing of its host")
    return needs, root or Root(tool_folders=needs.tool_folders)


def _require_any(nodes: list[Seen]) -> None:
    if all(one.status == MISSING for one in nodes):
        raise Skipped(f"no device: none of {', '.join(one.name for one in nodes)} is here")
