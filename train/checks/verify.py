"""`train verify`: run the checks of the build part and of the device part, and report."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from train.checks import installed
from train.checks.beside import Checks, start_beside
from train.checks.device_part import device_checks
from train.checks.host.verified import host_checks
from train.checks.report import CheckFailed, Report, Result, Skipped
from train.image import BuildInfo, read_build_info
from train.imports import without_collecting

NETWORK_EVENTS = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")


def verify(parts: dict[str, bool], stream: IO[str] | None = None) -> Report:
    """Run the checks of the named parts (`build`, `device`); `stream` gets a line after each.

    The build part needs no device and no network: vendor plugins are hidden from import, since they load a
    driver that only the host has.
    """
    image = read_build_info()
    report = Report(image.backend if image else "no image")
    connections = watch_network()
    if parts.get("build"):
        with hidden_plugin(image), tempfile.TemporaryDirectory(prefix="isotune-verify-") as folder:
            check_build(image, Path(folder), report, connections, stream)
        report.check("build", "offline", lambda: nothing_connected(connections), stream)
    if parts.get("device"):
        check_device(image, report, stream, is_fresh=not parts.get("build"))
    return report


def check_device(image: BuildInfo | None, report: Report, stream: IO[str] | None, is_fresh: bool) -> None:
    """The device part: in this process, or in a new one where the build part has hidden a plugin here."""
    if image is not None and image.plugin and not is_fresh:
        check_device_elsewhere(report, stream)
        return
    with tempfile.TemporaryDirectory(prefix="isotune-verify-") as folder:
        for name, check in (*host_checks(image), *device_checks(image, Path(folder))):
            report.check("device", name, check, stream)


def check_device_elsewhere(report: Report, stream: IO[str] | None) -> None:
    """`train verify --device` in a new process; its results become this report's, its lines the stream's."""
    code = "from train.cli import main; main()"
    command = [sys.executable, "-c", code, "verify", "--device", "--json"]
    paths = [
        str(Path(__file__).resolve().parent.parent.parent),
        *filter(None, [os.environ.get("PYTHONPATH")]),
    ]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    try:
        results = [Result(**one) for one in json.loads(done.stdout)["checks"]]
    except (ValueError, KeyError, TypeError):
        last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        results = [Result("device", "process", "failed", 0.0, f"ended with {done.returncode}: {last[0]}")]
    for result in results:
        report.add(result, stream)


def check_build(
    image: BuildInfo | None, folder: Path, report: Report, connections: list[str], stream: IO[str] | None
) -> None:
    """The build part. Hashing files and training OFT have a process of their own each, beside the rest."""
    files = start_beside("build", [("files", partial(installed.files_equal_lock, image))], connections)
    for name, check in environment_checks(image):
        report.check("build", name, check, stream)
    # Imported once, for both processes; each check that needs them says what is wrong with them.
    with contextlib.suppress(Exception), without_collecting():
        _training_module(image)
    oft = start_beside("build", training_checks(image, folder / "oft", "oft"), connections)
    for name, check in training_checks(image, folder / "lora", "lora"):
        report.check("build", name, check, stream)
    for result in [*oft.results(connections), *files.results(connections)]:
        report.add(result, stream)


def environment_checks(image: BuildInfo | None) -> Iterator[tuple[str, Callable[[], str]]]:
    """Name and function of each check of what is installed, the quick ones first."""
    yield "versions", lambda: installed.versions_equal_lock(image)
    yield "no refused packages", lambda: installed.no_refused_packages(image)
    yield "torch", partial(_torch, image)


def _torch(image: BuildInfo | None) -> str:
    with without_collecting():
        importable(image)
    return installed.torch_is_expected(image)


def training_checks(image: BuildInfo | None, folder: Path, adapter: str) -> Checks:
    """Name and function of each check that trains an adapter in a folder, in the order in which they go."""
    folder.mkdir()
    checks: Checks = []
    for title, function in (("trains", "trains"), ("reloads, merges", "reloads_and_merges")):
        checks.append((f"{adapter} {title}", partial(_training, image, folder, function, adapter)))
    if adapter == "oft":
        checks.append(("oft stays orthogonal", partial(_training, image, folder, "rotations_are_orthogonal")))
    else:
        checks.append(("packing", partial(_training, image, folder, "packing_keeps_samples_apart")))
    return checks


def _training(image: BuildInfo | None, folder: Path, check: str, *arguments: str) -> str:
    training = _training_module(image)
    return getattr(training, check)(training.Bench(folder), *arguments)


def _training_module(image: BuildInfo | None) -> ModuleType:
    importable(image)
    from train.checks import training

    return training


def importable(image: BuildInfo | None) -> str:
    """Empty where torch imports.

    Skipped where the spec says that it needs its driver, and the driver is not here.
    """
    try:
        import torch  # noqa: F401
    except (ImportError, OSError, RuntimeError) as fault:
        if image is not None and not image.import_at_build:
            raise Skipped(f"torch cannot be imported without its driver: {fault}") from None
        raise CheckFailed(f"torch cannot be imported: {fault}") from None
    return ""


@contextmanager
def hidden_plugin(image: BuildInfo | None) -> Iterator[None]:
    """Hide the vendor's plugin of torch from every import, and from torch's own autoload, while the
    checks run.
    """
    before = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    finder = _Hide(image.plugin["module"]) if image and image.plugin else None
    original = importlib.util.find_spec
    if finder:
        sys.meta_path.insert(0, finder)
        # Libraries ask find_spec whether the plugin is there: it must answer None, not raise.
        importlib.util.find_spec = lambda name, package=None: (
            None if finder.hides(name) else original(name, package)
        )
    try:
        yield
    finally:
        importlib.util.find_spec = original
        if finder:
            sys.meta_path.remove(finder)
        if before is None:
            del os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"]
        else:
            os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = before


class _Hide:
    """A finder that refuses one module and all below it."""

    def __init__(self, module: str) -> None:
        self.module = module

    def hides(self, name: str) -> bool:
        return name == self.module or name.startswith(self.module + ".")

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if self.hides(name):
            raise ModuleNotFoundError(f"{name} is hidden while the build part of verify runs", name=name)
        return None


def watch_network() -> list[str]:
    """A list that fills with every attempt of this process to reach the network from now on."""
    attempts: list[str] = []

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event in NETWORK_EVENTS:
            attempts.extend(_outside(event, arguments))

    sys.addaudithook(note)
    return attempts


def _outside(event: str, arguments: tuple[Any, ...]) -> Iterator[str]:
    address = arguments[1] if event in ("socket.connect", "socket.sendto") else arguments[0]
    if isinstance(address, (str, bytes)) and event in ("socket.connect", "socket.sendto"):
        return  # a path: a socket of this machine
    yield f"{event} {address!r}"


def nothing_connected(attempts: list[str]) -> str:
    """No check tried to reach the network. Sees Python's sockets; the build cuts the network besides."""
    if attempts:
        raise CheckFailed(
            f"{len(attempts)} attempts to reach the network: {'; '.join(sorted(set(attempts))[:5])}"
        )
    return "no attempt to reach the network"
