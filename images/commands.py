"""Commands of build.py that need no engine: what they take and say; the work is elsewhere."""

from __future__ import annotations

import argparse
from pathlib import Path

from images.errors import UserError
from images.options import Parser, add_source_options, sources_from
from images.selection import add_selection, selected


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
