"""How long the libraries take to import, from packages as they are installed and from the same ones trimmed.

    python tests/bench/import_time.py [--rounds N] [--code TEXT] [--folder DIR] [--json]

Both environments are made of hard links to this one's packages, so that they share each file's place on
the disk and in memory; `images/trim.json` says what one of them lacks. Each round imports in fresh processes
of each, in turn; a ratio is the median of the ratios within the rounds. Seconds are the process's own (user
and system), which a busy machine disturbs least; the elapsed ones are told beside. `--folder` is a place on
the disk of the packages.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from images.trim import read_rules, trim  # noqa: E402

CODE = "import torch, transformers, peft"
BOUND = 1.05
"""Of the trimmed to the untrimmed: not worse, within what repeated rounds differ by."""


@dataclass(frozen=True)
class Taken:
    """One import: seconds of the processor, and elapsed."""

    processor: float
    elapsed: float


def make_pair(packages: Path, folder: Path) -> dict[str, Path]:
    """Two environments from one folder of packages: as installed, and trimmed; the packages stay as they are.

    Raises OSError where the folder is on another disk than the packages.
    """
    pair = {name: folder / name for name in ("untrimmed", "trimmed")}
    for prefix in pair.values():
        venv.create(prefix, with_pip=False, symlinks=True)
        (site,) = prefix.glob("lib/python3*/site-packages")
        site.rmdir()
        subprocess.run(["cp", "--archive", "--link", str(packages), str(site)], check=True)
    trim(pair["trimmed"], read_rules(ROOT / "images/trim.json"))
    return pair


def imported(prefix: Path, code: str) -> Taken:
    """Run the code in a process of an environment; raises CalledProcessError if it fails."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(prefix / "bin/python"), "-c", code]
    started = time.perf_counter()
    process = subprocess.Popen(command, env={**environment, "PYTHONDONTWRITEBYTECODE": "1"})
    _, status, used = os.wait4(process.pid, 0)
    elapsed = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Taken(used.ru_utime + used.ru_stime, elapsed)


def measure(pair: dict[str, Path], code: str, rounds: int) -> dict[str, list[Taken]]:
    """Imports of each environment in each round, in turn, after one of each that is not counted."""
    taken: dict[str, list[Taken]] = {name: [] for name in pair}
    for number in range(-1, rounds):
        for name in sorted(pair, reverse=number % 2 == 0):
            found = imported(pair[name], code)
            if number >= 0:
                taken[name].append(found)
    return taken


def report(taken: dict[str, list[Taken]], code: str) -> dict[str, Any]:
    """Medians of each environment, and the bar."""
    pairs = zip(taken["trimmed"], taken["untrimmed"], strict=True)
    value = statistics.median(mine.processor / its.processor for mine, its in pairs)
    figures = {
        name: {
            "processor_seconds": round(statistics.median(one.processor for one in found), 2),
            "elapsed_seconds": round(statistics.median(one.elapsed for one in found), 2),
        }
        for name, found in taken.items()
    }
    bar = {"value": round(value, 3), "bound": BOUND, "ok": value <= BOUND}
    rounds = len(taken["trimmed"])
    return {"code": code, "rounds": rounds, "figures": figures, "bars": {"trimmed / untrimmed": bar}}


def main(arguments: list[str] | None = None) -> int:
    """Print the figures; 1 where the trimmed packages take longer."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--code", default=CODE)
    parser.add_argument("--folder", type=Path, help="where both environments are made, and removed again")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    (packages,) = Path(sys.prefix).glob("lib/python3*/site-packages")
    with tempfile.TemporaryDirectory(prefix="isotune-imports-", dir=options.folder) as folder:
        pair = make_pair(packages, Path(folder))
        found = report(measure(pair, options.code, options.rounds), options.code)
    if options.json:
        print(json.dumps(found))
    else:
        print(f"{found['code']}: medians of {found['rounds']} rounds")
        for name, seconds in found["figures"].items():
            own, elapsed = seconds["processor_seconds"], seconds["elapsed_seconds"]
            print(f"  {name:<10}{own:7.2f} s  elapsed {elapsed:.2f} s")
        for name, bar in found["bars"].items():
            print(f"  {name}: {bar['value']} (at most {bar['bound']}) {'ok' if bar['ok'] else 'NOT MET'}")
    return 0 if all(bar["ok"] for bar in found["bars"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
