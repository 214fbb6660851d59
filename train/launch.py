"""`train --nproc N`: torchrun as a child; signals are passed on, and the cause of a failure is told once.

What PET_* says in the environment (torchrun's own variables, for several machines) is left to torchrun.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from train.errors import EXIT_TRAINING, EXIT_UNAVAILABLE, EXIT_USAGE, UserError
from train.launch_reports import VARIABLE, Reports, verdict
from train.stop import REQUEST

if TYPE_CHECKING:
    from train.config import RunConfig

POLL_SECONDS = 0.1
GRACE_SECONDS = "15"
"""Between SIGTERM and SIGKILL for ranks that are left when one has failed; torch from 2.13 reads it. A stop
that was asked for is not under it: that signal goes to the ranks themselves."""
SEVERAL = ("PET_NNODES", "PET_NPROC_PER_NODE")
"""Either says how torchrun is to be started."""


@dataclass(frozen=True)
class Plan:
    """How torchrun is started: the processes on this machine, and its options for where they meet."""

    processes: int
    meeting: tuple[str, ...]

    @property
    def is_standalone(self) -> bool:
        """Whether this machine is the only one."""
        return "--standalone" in self.meeting


def asked_for(nproc: str | None, environment: Mapping[str, str]) -> str | None:
    """How many processes are asked for on this machine, `auto` or a number; None where this process is to
    train itself: nobody asked, or it is one of those that torchrun started.

    UserError (exit 64) for another value, or one that torchrun's contradicts.
    """
    if nproc is not None and nproc != "auto" and not (nproc.isdecimal() and int(nproc)):
        hint = "--nproc auto takes all devices; without it one process trains"
        raise UserError(f"--nproc {nproc}: a number from 1, or auto, is due", hint, EXIT_USAGE)
    if {"RANK", "WORLD_SIZE", "LOCAL_RANK"} <= environment.keys():
        there = environment.get("LOCAL_WORLD_SIZE", environment["WORLD_SIZE"])
        if nproc not in (None, "auto", there):
            raise UserError(
                f"--nproc {nproc}: torchrun has started {there} processes already", "leave --nproc out"
            )
        return None
    if nproc is None and any(name in environment for name in SEVERAL):
        return environment.get("PET_NPROC_PER_NODE", "1")
    return nproc


def plan(config: RunConfig, asked: str, environment: Mapping[str, str]) -> Plan | None:
    """The processes to start; None where one is enough, which this process then is.

    UserError (exit 69) where there are fewer devices than processes.
    """
    from train.detect import find_device
    from train.image import read_build_info

    image = read_build_info()
    device_type, _ = find_device(config.device, image)
    found = _num_devices(device_type)
    is_cpu = device_type == "cpu"
    wanted = int(asked) if asked.isdecimal() else 1 if is_cpu else found
    if wanted > found:
        variable = image.visible_devices_variable if image else None
        seen = f", {variable} is {environment.get(variable, 'not set')}" if variable else ""
        kind = "CPU cores" if is_cpu else f"{device_type} devices"
        raise UserError(
            f"--nproc {wanted}: there are {found} {kind}{seen}",
            f"--nproc {found}, or give the container more of them: one process needs one for itself",
            EXIT_UNAVAILABLE,
        )
    planned = Plan(wanted, _meeting(environment))
    return None if wanted == 1 and planned.is_standalone else planned


def _meeting(environment: Mapping[str, str]) -> tuple[str, ...]:
    """torchrun's options for where processes meet; none where PET_* says it for several machines.

    RANK and WORLD_SIZE without LOCAL_RANK are those of a Pod among others, as schedulers set them.
    """
    if environment.get("PET_NNODES", "1") != "1":
        return ()
    size = environment.get("WORLD_SIZE", "")
    if size.isdecimal() and int(size) > 1 and {"RANK", "MASTER_ADDR"} <= environment.keys():
        nodes = ("--nnodes", size, "--node-rank", environment["RANK"])
        port = environment.get("MASTER_PORT", "29500")
        return (*nodes, "--master-addr", environment["MASTER_ADDR"], "--master-port", port)
    return ("--standalone", "--local-addr", "127.0.0.1")


def _num_devices(device_type: str) -> int:
    import torch

    if device_type == "cpu":
        return len(os.sched_getaffinity(0))
    return int(getattr(torch, device_type).device_count())


def launch(planned: Plan, arguments: list[str]) -> int:
    """Run the train command with these arguments once per process; the exit code of the whole.

    Lines that say why it failed go to stderr, once.
    """
    REQUEST.is_put_off = True
    with tempfile.TemporaryDirectory(prefix="isotune-", ignore_cleanup_errors=True) as folder:
        reports = Reports(Path(folder))
        agent = subprocess.Popen(
            command(planned, arguments),
            env=_environment(planned, folder),
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # a terminal's Ctrl-C reaches this process alone, which passes it on
        )
        try:
            _watch(agent, reports)
        finally:
            _kill_rest(agent, reports)
        if agent.returncode == 0:
            return 0
        code, lines = verdict(reports, REQUEST.number)
    print("\n".join(lines), file=sys.stderr, flush=True)
    return code or EXIT_TRAINING


def command(planned: Plan, arguments: list[str]) -> list[str]:
    """The command line of torchrun's process."""
    number = ["--nproc-per-node", str(planned.processes), "--max-restarts", "0"]
    worker = [*_python("launch_worker"), *without_nproc(arguments)]
    return [*_python("launch_agent"), *planned.meeting, *number, "--no-python", *worker]


def _python(module: str) -> list[str]:
    """A process of this Python that runs a module of this package, whatever lies in the working folder: a
    train.py there would be found first.
    """
    root = str(Path(__file__).resolve().parent.parent)
    paths = f"import sys; sys.path[:] = [*filter(None, sys.path), {root!r}]"
    return [sys.executable, "-c", f"{paths}; from train.{module} import main; main()"]


def without_nproc(arguments: list[str]) -> list[str]:
    """The same arguments without `--nproc N`: each process is one."""
    kept: list[str] = []
    words = iter(arguments)
    for word in words:
        if word == "--nproc":
            next(words, None)
        elif not word.startswith("--nproc="):
            kept.append(word)
    return kept


def _environment(planned: Plan, folder: str) -> dict[str, str]:
    found = {**os.environ, VARIABLE: folder}
    found.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", GRACE_SECONDS)
    cores = len(os.sched_getaffinity(0))
    found.setdefault("OMP_NUM_THREADS", str(max(1, cores // planned.processes)))
    if planned.is_standalone:  # a host name need not resolve in a container without a network
        found.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return found


def _watch(agent: subprocess.Popen[bytes], reports: Reports) -> None:
    """Wait until torchrun ends; meanwhile each rank gets the signal that this process got, once."""
    told: set[int] = set()
    while agent.poll() is None:
        if REQUEST.number is not None:
            ranks = reports.pids()
            for rank in ranks.keys() - told:
                _send(ranks[rank], REQUEST.number)
            told |= ranks.keys()
            if not ranks:
                agent.terminate()  # there is nothing to save, and no rank to ask
        time.sleep(POLL_SECONDS)


def _kill_rest(agent: subprocess.Popen[bytes], reports: Reports) -> None:
    """No process outlives this one where it ends by a fault of its own, or torchrun was killed."""
    if agent.poll() is None:
        agent.kill()
        agent.wait()
    if agent.returncode < 0:
        for pid in reports.pids().values():
            _send(pid, signal.SIGKILL)


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
