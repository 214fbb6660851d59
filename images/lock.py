"""Write locks: resolve the stack, torch and its plugin to hashes, and note where each hash comes from."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

from images import lockfile, wheels
from images.errors import EXIT_CHECK_FAILED, EXIT_CONFIG, EXIT_DATA, UserError
from images.lockfile import LOCKS, REQUIREMENTS
from images.pins import Pin, normalise
from images.resolve import Request, StandIn, find_uv, resolve, uv_version
from images.spec import BackendSpec, WheelHash
from images.spec_types import UNRESOLVED

TOOLS = LOCKS / "tools" / REQUIREMENTS
TOOLS_STACK = lockfile.STACK.with_name("build.txt")


def lock_backend(
    spec: BackendSpec,
    upgrade: list[str],
    wheelhouse: Path | None = None,
    index_url: str | None = None,
) -> list[str]:
    """Write locks/<image>/ and return lines that say what was done and what stays unresolved."""
    uv = find_uv()
    folder = LOCKS / spec.image
    old = folder / REQUIREMENTS
    hashes, notes = _known_and_seen(spec, wheelhouse)
    pins = resolve(_request(spec, upgrade, index_url), _preferred(spec.image), uv)
    pins = [_with_hashes(pin, spec, hashes) for pin in pins if normalise(pin.name) not in spec.provided]
    requirements = _header(spec) + "\n".join(map(str, pins)) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    old.write_text(requirements, encoding="utf-8")
    entries = [_entry(item, version, entry) for (item, version), found in hashes.items() for entry in found]
    (folder / "lock.yaml").write_text(
        _lock_yaml(spec, requirements, uv_version(uv), entries), encoding="utf-8"
    )
    unresolved = [
        f"unresolved: {e['distribution']} {e['version']} for {e['python']} {e['architecture']}"
        for e in entries
        if e["sha256"] == UNRESOLVED
    ]
    name = lockfile.lock_id(lockfile.spec_checksum(spec), requirements)
    return [*notes, *unresolved, f"{spec.image}: locked {len(pins)} packages as {name}"]


def lock_tools(upgrade: list[str], index_url: str | None = None) -> list[str]:
    """Write locks/tools/: what build.py needs, at the cpu lock's versions where both have a package."""
    cpu = lockfile.read_lock("cpu")
    request = Request(
        lockfile.stack_lines(TOOLS_STACK),
        minimum_python="3.10",
        constraints=[pin.requirement for pin in cpu.pins] if cpu else [],
        upgrade=upgrade,
        index_url=index_url,
    )
    previous = TOOLS.read_text(encoding="utf-8") if TOOLS.exists() else None
    pins = resolve(request, previous, find_uv())
    TOOLS.parent.mkdir(parents=True, exist_ok=True)
    TOOLS.write_text(_tools_header() + "\n".join(map(str, pins)) + "\n", encoding="utf-8")
    return [f"tools: locked {len(pins)} packages"]


def check_backend(spec: BackendSpec) -> str:
    """Say that a lock is from today's spec and stack; raises UserError (1) if not."""
    try:
        found = lockfile.require_fresh(spec)
    except UserError as error:
        raise UserError(error.message, error.hint, EXIT_CHECK_FAILED) from error
    return f"{spec.image}: the lock {found.lock_id} is from this spec"


def check_all(specs: Iterable[BackendSpec]) -> list[str]:
    """Say of every lock that it is today's; raises UserError (1) with all that are not."""
    lines, faults = [], []
    checks: list[Callable[[], str]] = [functools.partial(check_backend, spec) for spec in specs]
    for check in [*checks, check_tools]:
        try:
            lines.append(check())
        except UserError as error:
            faults.append(error)
    if faults:
        message = "\n".join(error.message for error in faults)
        raise UserError(message, "; ".join(error.hint for error in faults), EXIT_CHECK_FAILED)
    return lines


def check_tools() -> str:
    """Say that the tools' lock is from today's list; raises UserError if not."""
    if not TOOLS.exists() or not TOOLS.read_text(encoding="utf-8").startswith(_tools_header()):
        message = "images/locks/tools: missing, or made from another images/stack/build.txt"
        raise UserError(message, "python build.py lock --tools", EXIT_CHECK_FAILED)
    return "tools: the lock is from this list"


def _preferred(image: str) -> str | None:
    """Return the pins to keep where they fit: those of the last lock, then those of the other images.

    So all images get the same versions, and only what is asked for with `upgrade` moves.
    """
    own = lockfile.read_lock(image)
    pins = {normalise(pin.name): [pin] for pin in own.pins} if own else {}
    for folder in sorted(path.parent for path in LOCKS.glob("*/lock.yaml") if path.parent.name != image):
        lock = lockfile.read_lock(folder.name)
        added = [pin for pin in lock.pins if normalise(pin.name) not in pins] if lock else []
        for pin in added:
            pins.setdefault(normalise(pin.name), []).append(pin)
    return "\n".join(str(pin) for name in sorted(pins) for pin in pins[name]) + "\n" if pins else None


def _request(spec: BackendSpec, upgrade: list[str], index_url: str | None) -> Request:
    own: list[str] = []
    stand_ins = []
    versions = spec.torch_versions()
    several = len(versions) > 1
    for version, machines in versions.items():
        where = " or ".join(f"platform_machine == '{machine}'" for machine in machines)
        # ==2.10.0 is also satisfied by 2.10.0+cpu, which is another architecture's.
        others = "".join(f",!={other}" for other in versions if other.startswith(f"{version}+"))
        own.append(f"torch=={version}{others}" + (f" ; {where}" if several else ""))
        # A local label exists on the spec's own index only, which this machine may not reach.
        if "+" in version:
            stand_ins.append(StandIn("torch", version, spec.torch.requires))
    # uv reads one wheel's metadata for all architectures; a plugin's wheels may each ask for another torch.
    overrides = list(own) if several else []
    if spec.plugin:
        own.append(f"{spec.plugin.distribution}=={spec.plugin.version}")
    pythons = sorted(spec.python.covers, key=_minor)
    before_next = f"python_full_version < '3.{_minor(pythons[-1]) + 1}'"
    environments = [
        f"sys_platform == 'linux' and platform_machine == '{machine}' and {before_next}"
        for machine in spec.architectures
    ]
    return Request(
        lockfile.stack_lines() + spec.packages + own,
        pythons[0],
        environments,
        stand_ins=stand_ins,
        overrides=overrides,
        upgrade=upgrade,
        index_url=index_url,
    )


Hashes = dict[tuple[str, str], list[WheelHash]]


def _known_and_seen(spec: BackendSpec, wheelhouse: Path | None) -> tuple[Hashes, list[str]]:
    """Return the hashes of the wheels of torch and its plugin, and notes on where was looked."""
    hashes: Hashes = {}
    notes = []
    earlier = _earlier(spec.image)
    if not spec.torch.provided:
        seen = wheels.in_folder(wheelhouse, "torch") if wheelhouse else []
        if wheelhouse:
            _compare_requirements(spec, wheelhouse, seen)
        listed = wheels.on_index(spec.torch.index, "torch") if spec.torch.index else []
        if listed is None:
            notes.append(f"{spec.torch.index} was not reached: the known hashes stand")
        for version, machines in spec.torch_versions().items():
            known = [item for item in spec.torch.hashes if item.architecture in machines]
            merged = wheels.merge(wheels.fill(known, earlier, version), [*seen, *(listed or [])], version)
            hashes["torch", version] = _covered(merged, spec)
    if spec.plugin:
        seen = wheels.in_folder(wheelhouse, spec.plugin.distribution) if wheelhouse else []
        merged = wheels.merge(spec.plugin.hashes, seen, spec.plugin.version)
        hashes[spec.plugin.distribution, spec.plugin.version] = _covered(merged, spec)
    return hashes, notes


def _earlier(name: str) -> list[wheels.SeenWheel]:
    """Return what an earlier `lock` resolved on a machine that could see more than this one."""
    lock = lockfile.read_lock(name)
    items = [item for item in lock.wheels if item["distribution"] == "torch"] if lock else []
    return [
        wheels.SeenWheel("lock.yaml", e["version"], e["python"], e["architecture"], e["sha256"], e["source"])
        for e in items
        if e["sha256"] != UNRESOLVED
    ]


def _covered(found: list[WheelHash], spec: BackendSpec) -> list[WheelHash]:
    tags = ["cp" + version.replace(".", "") for version in sorted(spec.python.covers, key=_minor)]
    wanted = [(tag, machine) for machine in spec.architectures for tag in tags]
    kept = [item for item in found if (item.python, item.architecture) in wanted]
    return sorted(kept, key=lambda item: wanted.index((item.python, item.architecture)))


def _compare_requirements(spec: BackendSpec, wheelhouse: Path, seen: list[wheels.SeenWheel]) -> None:
    wanted = spec.torch.requires
    local = [version for version in spec.torch_versions() if "+" in version]
    for wheel in [wheel for wheel in seen if wheel.version in local and wanted]:
        actual = wheels.requirements_of(wheelhouse / wheel.file)
        if sorted(actual) != sorted(wanted):
            message = f"{wheel.file}: requires {actual}, but torch.requires of the spec says {wanted}"
            raise UserError(message, "copy the wheel's own list into the spec", EXIT_DATA)


def _with_hashes(pin: Pin, spec: BackendSpec, hashes: Hashes) -> Pin:
    """Give torch and the plugin the hashes of the spec; those that the index gave must be among its own.

    One file per Python and architecture: an index may hold a rebuilt wheel of the same version beside it.
    """
    found = hashes.get((pin.name, pin.version))
    if found is None:
        return pin
    known = [item.sha256 for item in found if item.sha256 != UNRESOLVED]
    if "+" in pin.version:
        if not known:
            message = f"{pin.name}=={pin.version}: no hash is known for any of its wheels"
            raise UserError(message, "give a folder with the wheel: --wheelhouse DIR", EXIT_CONFIG)
        return Pin(pin.name, pin.version, pin.marker, tuple(known))
    strange = [value for value in known if value not in pin.hashes]
    if strange:
        message = "\n".join(
            f"{pin.name}=={pin.version}: the index does not list {value}" for value in strange
        )
        raise UserError(
            message, "the wheel was rebuilt or the spec is wrong: mend `hashes` in the spec", EXIT_DATA
        )
    complete = known and len(known) == len(found)
    return Pin(pin.name, pin.version, pin.marker, tuple(known)) if complete else pin


def _header(spec: BackendSpec) -> str:
    return (
        f"# made by `build.py lock {spec.selection}`; do not edit\n"
        f"# for Linux on {', '.join(spec.architectures)}, Python {', '.join(spec.python.covers)}\n"
        "# pip install --require-hashes --no-deps --only-binary=:all: -r requirements.txt\n"
    )


def _tools_header() -> str:
    digest = lockfile.checksum(lockfile.stack_lines(TOOLS_STACK))
    return f"# made by `build.py lock --tools`; do not edit\n# from images/stack/build.txt, {digest}\n"


def _entry(distribution: str, version: str, item: WheelHash) -> dict[str, str]:
    return {"distribution": distribution, "version": version, **item.model_dump()}


def _lock_yaml(spec: BackendSpec, requirements: str, resolver: str, entries: list[dict[str, str]]) -> str:
    own = lockfile.spec_checksum(spec)
    data: dict[str, Any] = {
        "schema": 1,
        "backend": spec.name,
        "variant": spec.variant,
        "lock_id": lockfile.lock_id(own, requirements),
        "spec_checksum": own,
        "requirements_sha256": lockfile.sha256_text(requirements),
        "base": {"reference": spec.base.reference, "digest": spec.base.digest},
        "python": spec.python.covers,
        "architectures": spec.architectures,
        "resolver": resolver,
        "wheels": entries,
    }
    banner = f"# made by `build.py lock {spec.selection}`; do not edit\n"
    return banner + yaml.safe_dump(data, sort_keys=False, width=110)


def _minor(version: str) -> int:
    return int(version.split(".")[1])
