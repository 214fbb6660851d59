"""Run tests with other versions of the libraries: `python tests/version_sets.py B C -- PYTEST-ARGUMENTS`.

Each set gets a virtual environment of its own, whose packages come before those of the environment that runs
this script: torch and all that the sets share is used from there, and only what differs is fetched, with pip.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import venv
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

import cuda_libraries
from record import ROOT, commit, without_places

SETS = {
    "B": {
        "transformers": "5.14.1",
        "peft": "0.21.2",
        "accelerate": "1.15.0",
        "huggingface_hub": "1.33.0",
        "tokenizers": "0.22.2",
        "datasets": "4.8.5",
    },
    "C": {
        "transformers": "4.57.6",
        "peft": "0.18.1",
        "accelerate": "1.12.0",
        "huggingface_hub": "0.36.2",
        "tokenizers": "0.22.2",
        "datasets": "4.8.5",
    },
    "H": {"torch": "2.7.1"},
    "A10": {"torch": "2.10.0"},
}
"""A, the newest consistent one, is what the locks hold. B is what most NPU reports use, C the last 4.x. H and
A10 are A with the torch of other backends; the registry has CUDA builds of it, which do here without their
libraries."""
BEYOND_CPU = re.compile(r"^torch \S+ requires (nvidia|cuda|triton)")
"""What pip check misses of such a build."""
ENDS = re.compile(
    r"^(FAILED|ERROR|SKIPPED) |^=*\s*\d+ (passed|failed|skipped|error|deselected)|^no tests ran"
)
"""The lines of pytest's that say what came of it."""
SHOWN = ("torch", "transformers", "peft", "accelerate", "huggingface_hub", "tokenizers", "datasets", "numpy")


class NotMade(Exception):
    """The environment of a set that could not be made, with the reason."""


def site_packages(folder: Path) -> Path:
    """Where a virtual environment of this Python keeps its packages."""
    return folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def python_of(folder: Path) -> Path:
    return folder / "bin" / "python"


def layer(folder: Path, below: Path, with_pip: bool = True) -> None:
    """Make a virtual environment that also sees the packages in the folder `below`, after its own.

    A line in a .pth file is appended to sys.path as it is: a package of the new environment hides the whole
    package of the same name below it, metadata too, and .pth files below it (an editable install) do not act.
    pip takes what lies below as installed and leaves it alone.
    """
    venv.EnvBuilder(with_pip=with_pip, clear=True, symlinks=True).create(folder)
    (site_packages(folder) / "below.pth").write_text(f"{below}\n", encoding="utf-8")


def make(folder: Path, pins: dict[str, str]) -> None:
    """The environment of a set, unless it is there already; NotMade where a pin does not hold in it.

    A torch comes without the libraries of its devices: stand-ins take their places.
    """
    below = site_packages(Path(sys.prefix))
    lines = [f"{name}=={version}" for name, version in pins.items()]
    installed = sorted(f"{found.name} {found.version}" for found in metadata.distributions(path=[str(below)]))
    wanted = hashlib.sha256(json.dumps([lines, installed, str(below)]).encode()).hexdigest()
    stamp = folder / ".made"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return
    layer(folder, below)
    pip = [str(python_of(folder)), "-m", "pip", "--disable-pip-version-check"]
    alone = ["--no-deps"] if "torch" in pins else []
    for command in ([*pip, "install", "-q", *alone, *lines], [*pip, "check"]):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        told = (done.stdout + done.stderr).strip().splitlines()
        if done.returncode and not (alone and all(BEYOND_CPU.match(line) for line in told)):
            raise NotMade(f"pip {command[4]}: {' '.join(told)}")
    if alone:
        cuda_libraries.make(site_packages(folder) / "torch" / "lib")
    found = versions(folder, list(pins))
    wrong = [f"{name} is {found[name]}, not {pins[name]}" for name in pins if found[name] != pins[name]]
    if wrong:
        raise NotMade("; ".join(wrong))
    stamp.write_text(wanted, encoding="utf-8")


def versions(folder: Path, names: list[str]) -> dict[str, str]:
    """Name -> version of what a process of that environment would import; `missing` where there is none."""
    code = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        found[name] = "missing"
print(json.dumps(found))
"""
    command = [str(python_of(folder)), "-c", code, *names]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def run_tests(folder: Path, arguments: list[str]) -> tuple[int, list[str]]:
    """pytest's exit code and what it printed, with the set's Python for the tests and their processes."""
    python = str(python_of(folder))
    environment = {**os.environ, "ISOTUNE_TEST_PYTHON": python}
    tokenizer = Path(sys.prefix) / "qwen3-tokenizer"  # where test.sh puts it
    if tokenizer.exists():
        environment.setdefault("ISOTUNE_TEST_QWEN3", str(tokenizer))
    command = [python, "-m", "pytest", *arguments]
    printed = bytearray()
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE) as process:
        assert process.stdout
        while piece := os.read(process.stdout.fileno(), 1 << 16):  # not by lines: each dot as it comes
            printed += piece
            sys.stdout.buffer.write(piece)
            sys.stdout.flush()
    return process.returncode, printed.decode(errors="replace").splitlines()


def record(name: str, tested: str, found: str, arguments: list[str], outcome: str, lines: list[str]) -> str:
    """What a run of a set showed, as the text of a file: no path of this machine is in it."""
    kept = [line for line in lines if ENDS.match(line)]
    kept += [line for line in lines[-1:] if line not in kept]
    text = "\n".join(
        [
            f"set {name}: {outcome}",
            f"command: python tests/version_sets.py {name} -- {shlex.join(arguments)}",
            f"date: {datetime.now(timezone.utc):%Y-%m-%d}",
            f"commit: {tested}",
            f"python {sys.version_info[0]}.{sys.version_info[1]} on {os.uname().machine}, {found}",
            "",
            *kept,
        ]
    )
    return "".join(f"{without_places(line)}\n" for line in text.split("\n"))


def parse(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Own arguments, and those after `--`, which are pytest's."""
    border = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(
        description=__doc__, usage="%(prog)s [--folder DIR] [--record DIR] SET... -- PYTEST-ARGS..."
    )
    parser.add_argument("sets", nargs="+", choices=sorted(SETS), metavar="SET", help="B, C, H or A10")
    parser.add_argument("--folder", type=Path, default=Path(sys.prefix) / "sets", help="of the environments")
    parser.add_argument(
        "--record", type=Path, metavar="DIR", help="write what each set showed to set-NAME.txt"
    )
    return parser.parse_args(arguments[:border]), arguments[border + 1 :]


def main(arguments: list[str]) -> int:
    """1 where the tests of any set failed, or a set could not be made."""
    options, pytest_arguments = parse(arguments)
    tested = commit()  # before a record is written
    outcomes = {}
    for name in dict.fromkeys(options.sets):
        found, outcomes[name], lines = run_set(name, options.folder.resolve() / name, pytest_arguments)
        if options.record:
            options.record.mkdir(parents=True, exist_ok=True)
            text = record(name, tested, found, pytest_arguments, outcomes[name], lines)
            (options.record / f"set-{name}.txt").write_text(text, encoding="utf-8")
    print("\n".join(f"set {name}: {outcome}" for name, outcome in outcomes.items()))
    return int(any(outcome != "passed" for outcome in outcomes.values()))


def run_set(name: str, folder: Path, arguments: list[str]) -> tuple[str, str, list[str]]:
    """The versions of a set, `passed` or why it failed, and what pytest printed."""
    try:
        make(folder, SETS[name])
    except NotMade as fault:
        return "versions unknown", f"failed: the environment could not be made: {fault}", []
    found = ", ".join(f"{key} {value}" for key, value in versions(folder, list(SHOWN)).items())
    print(f"== set {name}: {found}", flush=True)
    code, lines = run_tests(folder, arguments)
    return found, "passed" if code == 0 else f"failed: pytest ended with {code}", lines


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
