"""Checks beside the others: what they found comes back whole; a process that dies has failed its checks."""

from __future__ import annotations

import os
import signal
import socket

from train.checks.beside import start_beside
from train.checks.report import CheckFailed, Skipped
from train.checks.verify import watch_network


def test_checks_beside_run_in_another_process_and_tell_what_they_found() -> None:
    def fails() -> str:
        raise CheckFailed("a file changed")

    def skips() -> str:
        raise Skipped("no device")

    checks = [("who", lambda: str(os.getpid())), ("files", fails), ("device", skips)]
    who, files, device = start_beside("build", checks, []).results([])
    assert (who.part, who.name, who.status) == ("build", "who", "passed")
    assert int(who.detail) != os.getpid()
    assert (files.status, files.detail) == ("failed", "a file changed")
    assert (device.status, device.detail) == ("skipped", "no device")


def test_an_attempt_to_reach_the_network_beside_is_told_once() -> None:
    attempts = watch_network()
    attempts.append("an attempt of before")

    def reaches_out() -> str:
        with socket.socket() as outward:
            outward.settimeout(0.2)
            return str(outward.connect_ex(("127.0.0.1", 9)))

    start_beside("build", [("oft trains", reaches_out)], attempts).results(attempts)
    assert attempts == ["an attempt of before", "socket.connect ('127.0.0.1', 9)"]


def test_a_process_that_dies_has_failed_each_of_its_checks() -> None:
    def dies() -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return "not reached"

    checks = [("good", lambda: "fine"), ("oft trains", dies)]
    results = start_beside("build", checks, []).results([])
    assert [(one.name, one.status) for one in results] == [("good", "failed"), ("oft trains", "failed")]
    assert {one.detail for one in results} == {"its process ended with -9"}
