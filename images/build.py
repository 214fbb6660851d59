"""Build one image: check the lock, render, gather the context and hand it to the engine."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from images import render
from images.context import Revision, prepare, revision
from images.errors import EXIT_CONFIG, EXIT_USAGE, UserError
from images.inventory import write_inventory
from images.lint import require_clean
from images.lockfile import Lock, require_fresh
from images.machine import Machine
from images.platforms import ARCHITECTURES, chosen
from images.sources import Sources, base_address
from images.spec import BackendSpec
from images.spec_types import UNRESOLVED
from images.wheelhouse import require_complete, wanted

if TYPE_CHECKING:
    from images.engine import Engine

Result = TypeVar("Result")


@dataclass(frozen=True)
class BuildOptions:
    """What the command line says about one build."""

    tags: list[str] = field(default_factory=list)
    output: Path | None = None
    push: bool = False
    no_cache: bool = False
    render_only: bool = False
    base_image: str | None = None
    allow_unresolved_base: bool = False
    network: str | None = None
    sources: Sources = field(default_factory=Sources)
    platforms: list[str] = field(default_factory=list)


def build(spec: BackendSpec, options: BuildOptions) -> str:
    """Render, then build and tag; returns the image's digest, or nothing if only files were rendered.

    Raises UserError with the exit code of what stands in the way.
    """
    if options.output and options.push:
        raise UserError("--push: has no effect with --output", "leave one of them out", EXIT_USAGE)
    if options.render_only:
        _render(spec)
        return ""
    lock = require_fresh(spec)
    _render(spec)
    _check_base(spec, options)
    _say(require_clean(spec.image))
    engine = _connect(spec)
    names = chosen(spec, options.platforms, engine.platforms())
    machines = [Machine(spec.python.version, ARCHITECTURES[name]) for name in names]
    _check_wheels(spec, lock, machines)
    _check_wheelhouse(spec, options, lock, machines)
    emulated = [machine.architecture for machine in machines if machine.architecture != engine.architecture]
    if emulated:
        _say(f"note: {emulated[0]} is emulated by this {engine.architecture} engine: it takes far longer")
    tags = options.tags or [f"isotune:{spec.image}-{lock.lock_id}", f"isotune:{spec.image}"]
    with tempfile.TemporaryDirectory(prefix="isotune-build-") as folder:
        return _run(spec, options, engine, tags, machines, Path(folder))


def _render(spec: BackendSpec) -> None:
    changed = render.write(render.render_backend(spec))
    where = f"images/rendered/{spec.image}"
    _say(f"{where}: {'rendered' if changed else 'up to date'}")


def _connect(spec: BackendSpec) -> Engine:
    from images.engine import connect

    try:
        return connect()
    except UserError as error:
        how = f"images/rendered/{spec.image} is ready: start Docker, or run this on a host that has it"
        raise UserError(error.message, error.hint or how, error.exit_code) from error


def _check_base(spec: BackendSpec, options: BuildOptions) -> None:
    if spec.base.digest != UNRESOLVED or options.base_image or options.allow_unresolved_base:
        return
    where = f"images/backends/{spec.name}.yaml: base.digest of {spec.image}"
    message = f"{where}: no digest of {spec.base.reference} is known"
    hint = f"python build.py lock {spec.selection} --resolve-base, where its registry answers; "
    hint += "or --base-image REF, or --allow-unresolved-base"
    raise UserError(message, hint, EXIT_CONFIG)


def _check_wheels(spec: BackendSpec, lock: Lock, machines: list[Machine]) -> None:
    """Refuse what cannot succeed, before minutes are spent on it: a wheel whose hash is not known."""
    _of_each(machines, lambda machine: wanted(spec, lock, machine))


def _check_wheelhouse(spec: BackendSpec, options: BuildOptions, lock: Lock, machines: list[Machine]) -> None:
    """With the network cut everything must be there: say all that is missing before minutes are spent."""
    folder = options.sources.wheelhouse
    if options.network == "none" and folder:
        states = _of_each(machines, lambda machine: require_complete(spec, lock, folder, machine))
        for machine, state in zip(machines, states, strict=True):
            _say(f"{folder}: all {len(state.found)} wheels for {machine} are there, compared by hash")


def _of_each(machines: list[Machine], check: Callable[[Machine], Result]) -> list[Result]:
    """Return the results of a check, one per machine; raises UserError with the faults of all of them."""
    results, faults = [], []
    for machine in machines:
        try:
            results.append(check(machine))
        except UserError as error:
            faults.append(error)
    if faults:
        raise UserError("\n".join(e.message for e in faults), faults[0].hint, faults[0].exit_code)
    return results


def _run(
    spec: BackendSpec,
    options: BuildOptions,
    engine: Engine,
    tags: list[str],
    machines: list[Machine],
    folder: Path,
) -> str:
    from images.engine import BuildRequest

    source = revision()
    if source.note:
        _say(f"note: {source.note}")
    context = folder / "context"
    context.mkdir()
    prepare(context, spec.image, source.epoch)
    request = BuildRequest(
        dockerfile=context / "images" / "rendered" / spec.image / "Dockerfile",
        context=context,
        arguments=_arguments(spec, options, source, engine),
        metadata=folder / "metadata.json",
        output=options.output,
        tags=tags,
        named_contexts={"wheelhouse": options.sources.wheelhouse} if options.sources.wheelhouse else {},
        secrets=options.sources.secrets(spec, folder, [machine.architecture for machine in machines]),
        network=options.network,
        no_cache=options.no_cache,
        platforms=options.platforms,
    )
    started = time.monotonic()
    digest = engine.build(request)
    size = "" if options.output else f", {engine.size_bytes(tags[0]) / 1e6:.0f} MB compressed"
    if options.output:
        _say("\n".join(write_inventory(spec, f"oci:{options.output}", Path(f"{options.output}.inventory"))))
    _say(f"built {options.output or ', '.join(tags)} in {time.monotonic() - started:.0f} s{size}")
    for tag in tags if options.push else []:
        engine.push(tag)
        _say(f"pushed {tag}")
    return digest


def _arguments(spec: BackendSpec, options: BuildOptions, source: Revision, engine: Engine) -> dict[str, str]:
    name, digest = spec.base.reference, spec.base.digest
    if options.base_image:
        name = options.base_image
        digest = name.partition("@")[2] or engine.digest(name) or UNRESOLVED
    own = {
        "base_image": name,
        "base_digest": digest,
        "base_overridden": bool(options.base_image),
        "commit": source.commit,
        "source_date_epoch": source.epoch,
    }
    return {
        "BASE_IMAGE": base_address(spec, options.base_image, options.sources.mirrors),
        "SOURCE_DATE_EPOCH": str(source.epoch),
        "ISOTUNE_BUILD": json.dumps(own, separators=(",", ":")),
        "ISOTUNE_COMMIT": source.commit,
        "ISOTUNE_BASE_NAME": name,
        "ISOTUNE_BASE_DIGEST": digest,
        "ISOTUNE_BASE_OVERRIDDEN": str(bool(options.base_image)).lower(),
    }


def _say(text: str) -> None:
    """Progress goes to stderr: stdout is the digest alone, for scripts."""
    print(text, file=sys.stderr, flush=True)


def build_info_for(spec: BackendSpec, prefix: Path) -> Path:
    """Write build-info.json into a virtual environment that was made from the lock; returns its path."""
    from images import record
    from images.buildinfo import build_info

    source = revision()
    info = build_info(spec, require_fresh(spec))
    own = {
        "base_image": "none",
        "base_digest": "none",
        "commit": source.commit,
        "source_date_epoch": source.epoch,
    }
    record.write(record.complete(info, prefix, own), prefix / record.BUILD_INFO)
    return prefix / record.BUILD_INFO
