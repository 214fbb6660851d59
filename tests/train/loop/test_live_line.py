"""One live line on a terminal, plain lines in a log: never both, never torn."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from train.loop.metrics import StepMetrics
from train.loop.progress import step_line

SCRIPT = """
import os, signal, sys
from train.loop.metrics import StepMetrics
from train.loop.progress import Progress
from train.stop import REQUEST, listen, put_off

def step(number):
    loss, seconds = 3.0 - number / 10, 2.0 * number
    return StepMetrics(number, number / 4, loss, 1e-3, 0.5, 400, 100, seconds, 5_300_000_000)

listen()
try:
    with Progress() as progress, put_off():
        previous = None
        for number in range(1, 5):
            progress.stepped(number, 4)
            if number % 2 == 0:
                progress.logged(step(number), previous, 4)
                previous = step(number)
                print(f"checkpoint: step-{number}", flush=True)
            if number == 3 and "--signal" in sys.argv:
                os.kill(os.getpid(), signal.SIGTERM)
        REQUEST.number = None
finally:
    print("after", flush=True)
"""


def environment(**changes: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "TERM")
    }
    return kept | {"PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "COLUMNS": "120"} | changes


def on_terminal(command: list[str], **changes: str) -> str:
    """What a process writes to a terminal that is both its stdout and its stderr."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs, env=environment(**changes)
    )
    os.close(theirs)
    parts = []
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # how Linux says that the other side is gone
            break
        if not part:
            break
        parts.append(part)
    os.close(ours)
    assert process.wait(timeout=60) == 0, b"".join(parts)
    return b"".join(parts).decode()


def screen(written: str) -> list[str]:
    """The lines that a terminal shows after what was written."""
    lines, row, column = [""], 0, 0
    for token in re.findall(r"\x1b\[[?0-9;]*[A-Za-z]|\r|\n|[^\x1b\r\n]+", written):
        if token == "\r":
            column = 0
        elif token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif token.startswith("\x1b"):
            if token.endswith("A"):
                row = max(0, row - int(token[2:-1] or 1))
            elif token.endswith("K"):
                lines[row] = "" if token == "\x1b[2K" else lines[row][:column]
        else:
            lines[row] = lines[row][:column].ljust(column) + token + lines[row][column + len(token) :]
            column += len(token)
    return [line.rstrip() for line in lines if line.strip()]


LAST = "step 4/4  loss 2.6000  lr 1.00e-03  grad norm 0.500  100 tokens/s  peak 5.3 GB  0:00:00 left"
BEFORE = "step 2/4  loss 2.8000  lr 1.00e-03  grad norm 0.500  100 tokens/s  peak 5.3 GB  0:00:04 left"


def test_a_terminal_shows_one_line_that_changes_below_the_lines_that_stay() -> None:
    written = on_terminal([sys.executable, "-c", SCRIPT])
    assert screen(written) == ["checkpoint: step-2", "checkpoint: step-4", LAST, "after"]
    assert "step 2/4  loss 2.8000" in written, "it was shown while it was true"


def test_a_message_of_the_signal_handler_does_not_tear_the_line() -> None:
    shown = screen(on_terminal([sys.executable, "-c", SCRIPT, "--signal"]))
    said = "SIGTERM: the run stops after this batch and saves a checkpoint"
    assert shown == ["checkpoint: step-2", said, "checkpoint: step-4", LAST, "after"]


def test_a_narrow_terminal_cuts_the_line_and_never_wraps_it() -> None:
    shown = screen(on_terminal([sys.executable, "-c", SCRIPT], COLUMNS="40"))
    assert shown[2].startswith("step 4/4  loss 2.6000")
    assert shown[2].endswith("…")
    assert len(shown) == 4


def test_the_live_line_has_no_colour() -> None:
    for changes in ({}, {"NO_COLOR": "1"}):
        assert not re.search(r"\x1b\[[0-9;]*m", on_terminal([sys.executable, "-c", SCRIPT], **changes))


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_cannot_draw_again_gets_plain_lines(term: str) -> None:
    written = on_terminal([sys.executable, "-c", SCRIPT], TERM=term)
    assert "\x1b" not in written
    assert written.splitlines() == [BEFORE, "checkpoint: step-2", LAST, "checkpoint: step-4", "after"]


@pytest.mark.parametrize("changes", [{}, {"FORCE_COLOR": "1", "TTY_COMPATIBLE": "1"}])
def test_a_pipe_gets_a_plain_line_per_logged_step(changes: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, check=True, env=environment(**changes)
    )
    assert b"\x1b" not in done.stdout and b"\r" not in done.stdout
    lines = done.stdout.decode().splitlines()
    assert lines == [BEFORE, "checkpoint: step-2", LAST, "checkpoint: step-4", "after"]
    assert done.stderr == b""


def test_the_time_left_is_by_the_pace_so_far() -> None:
    line = step_line(StepMetrics(3, 1.0, 2.0, 1e-3, 0.5, 9000, 100, 90.0, 1_500_000_000), 123, 1234.4)
    assert line.endswith("1,234 tokens/s  peak 1.5 GB  1:00:00 left")


def test_evaluations_are_not_counted_in_the_pace_of_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    from train.loop.progress import Progress

    progress = Progress()
    first = StepMetrics(1, 0.5, 2.0, 1e-3, 0.5, 100, 10, 1.0, 10**9)
    progress.logged(first, None, 4)
    progress.aside_seconds += 8
    progress.logged(StepMetrics(2, 1.0, 2.0, 1e-3, 0.5, 300, 10, 12.0, 10**9), first, 4)
    progress.logged(StepMetrics(3, 1.5, 2.0, 1e-3, 0.5, 300, 10, 13.0, 10**9), first, 4)
    shown = re.findall(r"([0-9,]+) tokens/s", capsys.readouterr().out)
    assert shown == ["100", "100", "25"]


@pytest.mark.slow
def test_a_whole_run_on_a_terminal_ends_with_its_last_step_and_its_results(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    pairs = [("--adapter", "lora"), *((f"--{name}", recipe[name]) for name in ("model", "data", "output"))]
    pairs += [("--eval-data", recipe["data"])]
    pairs += [
        ("--set", text) for text in ("max_steps=4", "num_generations=0", "eval_steps=2", "save_steps=2")
    ]
    arguments = [str(part) for pair in pairs for part in pair]
    written = on_terminal(
        [sys.executable, "-c", "from train.cli import main; main()", *arguments], COLUMNS="200"
    )
    shown = screen(written)
    lives = [line for line in shown if line.startswith("step ")]
    assert len(lives) == 1
    assert lives[0].startswith("step 4/4  loss ")
    lines = [
        json.loads(line) for line in (recipe["output"] / "metrics.jsonl").read_text("utf-8").splitlines()
    ]
    assert [line["step"] for line in lines if "finding" not in line] == [1, 2, 2, 3, 4, 4]
    place = shown.index(lives[0])
    assert sum(line.startswith("eval loss after step") for line in shown[:place]) == 2
    assert shown[-1].startswith("finished: 4 steps")
