"""Commands of build.py that need no engine: what they take and say; the work is elsewhere."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from images.errors import EXIT_CONFIG, UserError, disk_full
from images.options import Parser, add_source_options, oci_path, sources_from
from images.selection import add_mirror, add_selection, selected


def run_list(given: list[str]) -> None:
    """`build.py list`: what there is."""
    parser = Parser(prog="build.py list", description=run_list.__doc__, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="for programs")
    add_selection(parser)
    options = parser.parse_args(given)

    from images.listing import rows, table

    found = rows(selected(options))
    print(json.dumps(found, indent=2) if options.json else table(found))


def run_lock(given: list[str]) -> None:
    """`build.py lock`: resolve to hashes."""
    parser = Parser(prog="build.py lock", description=run_lock.__doc__, allow_abbrev=False)
    add_selection(parser)
    parser.add_argument("--tools", action="store_true", help="lock what build.py itself needs")
    parser.add_argument("--check", action="store_true", help="write nothing: is the lock from this spec?")
    parser.add_argument("--upgrade", action="append", default=[], metavar="PKG", help="let this package move")
    parser.add_argument("--wheelhouse", type=Path, metavar="DIR", help="wheels to read hashes from")
    parser.add_argument("--index-url", metavar="URL", help="the package index to use instead of uv's default")
    parser.add_argument(
        "--resolve-base", action="store_true", help="ask the registry for the base's digest first"
    )
    add_mirror(parser)
    options = parser.parse_args(given)
    everything = options.check and not options.backend and not options.tools
    if bool(options.backend) == options.tools and not everything:
        parser.error("give either --backend NAME or --tools; --check alone checks all locks")
    if options.resolve_base and (options.check or options.tools):
        parser.error("--resolve-base writes the spec of a backend: it goes with neither --check nor --tools")

    from images import lock
    from images.basedigest import resolve_base
    from images.resolve import find_uv

    if everything:
        lines = lock.check_all(selected(options))
    elif options.tools:
        lines = [lock.check_tools()] if options.check else lock.lock_tools(options.upgrade, options.index_url)
    else:
        (spec,) = selected(options)
        if options.check:
            lines = [lock.check_backend(spec)]
        else:
            find_uv()  # before the spec is written: a lock that cannot follow it is stale
            lines = resolve_base(spec, options.mirror) if options.resolve_base else []
            (spec,) = selected(options)
            lines += lock.lock_backend(spec, options.upgrade, options.wheelhouse, options.index_url)
    print("\n".join(lines))


def run_render(given: list[str]) -> None:
    """`build.py render`: write every rendered file."""
    parser = Parser(prog="build.py render", description=run_render.__doc__, allow_abbrev=False)
    parser.add_argument(
        "--check", action="store_true", help="write nothing, show the difference, exit 1 if any"
    )
    add_selection(parser)
    options = parser.parse_args(given)

    from images import render

    files = render.render_all(selected(options))
    whole = () if options.backend else render.WHOLE
    if options.check:
        render.check(files, whole)
        print(f"{len(files)} rendered files are up to date")
    else:
        changed = render.write(files, whole)
        print(f"rendered {len(files)} files, {len(changed)} changed")


def run_lint(given: list[str]) -> None:
    """`build.py lint`: house rules on specs, locks and rendered files."""
    from images.lint import RULES, require_clean

    parser = Parser(
        prog="build.py lint",
        description=run_lint.__doc__,
        epilog="\n".join(f"  {name:<20} {rule}" for name, rule in RULES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.parse_args(given)
    print(require_clean())


def run_wheelhouse(given: list[str]) -> None:
    """`build.py wheelhouse`: collect every wheel of a lock, each compared by hash."""
    parser = Parser(prog="build.py wheelhouse", description=run_wheelhouse.__doc__, allow_abbrev=False)
    add = parser.add_argument
    add("folder", type=Path, metavar="DIR", help="where the wheels go; what is there already is kept")
    add_selection(parser)
    architecture = "x86_64 or aarch64 (default: this machine's, if the backend has it)"
    add("--architecture", action="append", default=[], metavar="NAME", help=architecture)
    add("--python", metavar="VERSION", help="for a virtual environment with another Python of the lock")
    add("--check", action="store_true", help="fetch nothing: is the folder complete?")
    add_source_options(parser)
    options = parser.parse_args(given)

    from images import wheelhouse
    from images.lockfile import require_fresh
    from images.machine import machines

    if not options.backend:
        parser.error("--backend is missing")
    (spec,) = selected(options)
    lock, sources = require_fresh(spec), sources_from(options)
    faults = []
    for machine in machines(spec, options.architecture, options.python):
        try:
            if options.check:
                state = wheelhouse.require_complete(spec, lock, options.folder, machine)
            else:
                state = wheelhouse.collect(spec, lock, options.folder, machine, sources)
            print(wheelhouse.summary(state, spec, machine, options.folder))
        except UserError as error:
            faults.append(error)
    if faults:
        raise UserError("\n".join(e.message for e in faults), faults[0].hint, faults[0].exit_code)


def run_matrix(given: list[str]) -> None:
    """`build.py matrix`: what goes with what, and what was shown to work."""
    parser = Parser(prog="build.py matrix", description=run_matrix.__doc__, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument(
        "--rules", action="store_true", help="the table of versions that go together, with sources"
    )
    parser.add_argument("--update", type=Path, metavar="FILE", help="write it between the marks of a file")
    options = parser.parse_args(given)
    if options.json + options.rules + bool(options.update) > 1:
        parser.error("give one of --json, --rules and --update")

    from images import matrix
    from images.specfile import load_specs

    specs = load_specs().values()
    print(matrix.rules() if options.rules else matrix.show(specs, options.json, options.update))


def run_sizes(given: list[str]) -> None:
    """`build.py sizes`: what takes the space of the images, as recorded."""
    parser = Parser(prog="build.py sizes", description=run_sizes.__doc__, allow_abbrev=False)
    add = parser.add_argument
    add_selection(parser)
    add("--measure", type=oci_path, metavar="oci:PATH", help="record the layers of a layout that was built")
    add("--place", metavar="WORDS", help="with --measure: on which base it was built, and where")
    add("--compute", action="store_true", help="record the sizes of its wheels, as an index tells them")
    options = parser.parse_args(given)
    if (options.measure or options.compute) and not options.backend:
        parser.error("--backend is missing")
    if bool(options.measure) != bool(options.place):
        parser.error("--measure and --place go together")

    from images import sizes

    specs = selected(options)
    found = sizes.measure(specs[0], options.measure, options.place) if options.measure else []
    if options.compute:
        found += sizes.compute_unmeasured(specs[0])
    for item in found:
        sizes.write_sizes(item)
    if options.backend:
        print("\n\n".join(map(sizes.details, sizes.read_sizes(specs[0]))) or "no sizes are recorded")
    else:
        print(sizes.table(specs))


def run_build_info(given: list[str]) -> None:
    """`build.py build-info`: describe a virtual environment made from a lock."""
    parser = Parser(prog="build.py build-info", description=run_build_info.__doc__, allow_abbrev=False)
    add_selection(parser)
    parser.add_argument("--prefix", type=Path, metavar="VENV", required=True, help="the environment's folder")
    options = parser.parse_args(given)
    if not options.backend:
        parser.error("--backend is missing")

    from images.build import build_info_for

    (spec,) = selected(options)
    try:
        print(build_info_for(spec, options.prefix))
    except OSError as error:
        hint = (
            "--prefix takes the folder of a virtual environment made from the lock; a file is written there"
        )
        raise disk_full(error) or UserError(
            f"{error.filename or options.prefix}: {error.strerror or error}", hint, EXIT_CONFIG
        ) from None
