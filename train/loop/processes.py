"""The processes of one run, one per device: what they say to each other beside gradients.

Rank 0 alone writes the output folder. With one process every function here only calls what it is given.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from train import device_faults
from train.config import RunConfig
from train.detect import find_device
from train.errors import EXIT_CONFIG, EXIT_UNAVAILABLE, UserError
from train.image import read_build_info
from train.launch_reports import FIRST_CRASHED
from train.policy import policy_for, set_environment
from train.stop import Stopped

T = TypeVar("T")
NEEDED = {"RANK": True, "LOCAL_RANK": True, "MASTER_ADDR": False, "MASTER_PORT": True}
"""Variable of torchrun's -> whether it is a number."""
PATIENCE = timedelta(days=7)
"""Others wait while rank 0 tokenises or saves, however long that takes; they see at once where it dies."""


@dataclass
class _Talk:
    """The group of processes on the host by which they talk; None before `begin`, and with one process.

    ended: groups that were left. Nobody may let go of them: gloo's waits for its threads then, with the GIL
    that a thread may need to let go of a message (torch 2.7.1 hangs so, at the end of a good run).
    """

    group: Any = None
    ended: list[Any] = field(default_factory=list)


_TALK = _Talk()


def environment_rank() -> int:
    """This process's number among all, as the environment says; 0 where it says nothing."""
    rank = os.environ.get("RANK", "")
    return int(rank) if rank.isdecimal() and environment_size() > 1 else 0


def environment_size() -> int:
    """The number of processes of the run, as the environment says."""
    size = os.environ.get("WORLD_SIZE", "")
    return int(size) if size.isdecimal() and "RANK" in os.environ else 1


def local_rank() -> int:
    """This process's number on its machine. UserError (exit 78) where the environment gives no numbers."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    given = {name: os.environ[name] for name in names if name in os.environ}
    wrong = [f"{name}: {value!r}: a number is due" for name, value in given.items() if not value.isdecimal()]
    if wrong:
        hint = "unset what a scheduler left there, or let `train --nproc N` or torchrun start the processes"
        raise UserError("\n".join(wrong), hint, EXIT_CONFIG)
    return int(given.get("LOCAL_RANK", "0"))


def begin(config: RunConfig) -> None:
    """Join the other processes of the run, where the environment names any.

    Sets this process's device, and what the image's policy says of the group and its environment. UserError
    (exit 78) where the environment is not whole.
    """
    if environment_size() == 1:
        local_rank()
        return
    import torch
    from torch import distributed

    _complete(os.environ)
    image = read_build_info()
    device_type, _ = find_device(config.device, image)
    policy = policy_for(device_type, image)
    set_environment(policy)
    if device_type != "cpu":
        getattr(torch, device_type).set_device(int(os.environ["LOCAL_RANK"]))
    if not distributed.is_initialized():
        limit = config.step_timeout_seconds  # the watchdog, which says where it hangs, comes before the group
        timeout = timedelta(seconds=5 * limit) if limit else PATIENCE
        distributed.init_process_group(policy.process_group, timeout=timeout)
    _TALK.group = distributed.new_group(backend="gloo", timeout=PATIENCE)


def _complete(environment: Any) -> None:
    """Where a scheduler starts one process per Pod, nobody sets LOCAL_RANK: it is 0. UserError (exit 78) for
    what else is missing.
    """
    environment.setdefault("LOCAL_RANK", "0")
    wrong = [
        f"{name}: {environment.get(name) or 'is not set'}{', a number is due' if is_number else ''}"
        for name, is_number in NEEDED.items()
        if not environment.get(name) or (is_number and not environment[name].isdecimal())
    ]
    if wrong:
        raise UserError(
            "\n".join(wrong),
            f"WORLD_SIZE {environment['WORLD_SIZE']} in the environment says that this process is one of "
            "several: let `train --nproc N` or torchrun start them, or unset it",
            EXIT_CONFIG,
        )


def size() -> int:
    """The number of processes that have begun together."""
    from torch import distributed

    return 1 if _TALK.group is None else distributed.get_world_size(_TALK.group)


def rank() -> int:
    """This process's number among them."""
    from torch import distributed

    return 0 if _TALK.group is None else distributed.get_rank(_TALK.group)


def is_first() -> bool:
    """Whether this process is the one that writes."""
    return rank() == 0


def end() -> None:
    """Leave the group together, where there is one; at the end of a run that went well."""
    from torch import distributed

    if _TALK.group is not None:
        gather(None)
        _TALK.ended += [distributed.group.WORLD, _TALK.group]
        _TALK.group = None
        distributed.destroy_process_group()


def gather(value: T) -> list[T]:
    """The value of each rank, in order, on all of them."""
    if _TALK.group is None:
        return [value]
    from torch import distributed

    values: list[Any] = [None] * size()
    distributed.all_gather_object(values, value, group=_TALK.group)
    return values


def on_first(work: Callable[[], T]) -> T:
    """What `work` gives on rank 0, which alone does it, on all ranks; so is what it raises."""
    if _TALK.group is None:
        return work()
    from torch import distributed

    said: list[Any] = [None]
    fault: BaseException | None = None
    if is_first():
        try:
            said = [("made", work())]
        except RuntimeError as raised:
            fault = device_faults.told_as(raised) or raised
            said = [_told(fault)]
        except BaseException as raised:
            fault, said = raised, [_told(raised)]
    distributed.broadcast_object_list(said, src=0, group=_TALK.group)
    if fault:
        raise fault
    return _taken(said[0])


def first_of_node_first(work: Callable[[], T]) -> T:
    """What `work` gives, on each rank its own: the first rank of each machine goes before its others, which
    find in caches what it made. UserError on all ranks where it raises one on any.
    """
    if _TALK.group is None:
        return work()
    is_before = os.environ.get("LOCAL_RANK") == "0"
    made = _tried(work) if is_before else None
    _raise_first(gather(None if made is None or made[0] == "made" else made))
    if made is None:
        made = _tried(work)
    _raise_first(gather(None if made[0] == "made" else made))
    return _taken(made)


def require_same(found: dict[str, Any]) -> None:
    """UserError (exit 69) where ranks differ in a value: all take part in one step."""
    ranks = gather(found)
    wrong = [
        f"rank {number}: {name} is {other[name]}, on rank 0 it is {value}"
        for number, other in enumerate(ranks)
        for name, value in ranks[0].items()
        if other[name] != value
    ]
    if wrong:
        hint = "--set NAME=VALUE asks for what all can; train verify --device looks at the devices"
        raise UserError("\n".join(wrong), hint, EXIT_UNAVAILABLE)


def _tried(work: Callable[[], Any]) -> Any:
    try:
        return "made", work()
    except UserError as fault:
        return _told(fault)


def _raise_first(said: list[Any]) -> None:
    """Raise the fault of the lowest rank that has one: one and the same everywhere."""
    for one in said:
        if one is not None:
            _taken(one)


def _told(fault: BaseException) -> tuple[Any, ...]:
    """A fault as it can be sent: exceptions of libraries need not come through a pickle."""
    if isinstance(fault, UserError):
        return "fault", fault.message, fault.hint, fault.exit_code
    if isinstance(fault, Stopped):
        return "stopped", fault.number
    return "crash", f"{FIRST_CRASHED}{fault!r}"


def _taken(said: tuple[Any, ...]) -> Any:
    kind, *rest = said
    if kind == "fault":
        raise UserError(*rest)
    if kind == "stopped":
        raise Stopped(*rest)
    if kind == "crash":
        raise RuntimeError(*rest)
    return rest[0]
