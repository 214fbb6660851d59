#!/usr/bin/env python3
"""Build verified fine-tuning images: `build.py --backend NAME`, and the commands around it."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from images.commands import run_lint, run_wheelhouse
from images.errors import EXIT_UNAVAILABLE, EXIT_USAGE, UserError
from images.options import Parser, add_source_options, sources_from
from images.selection import add_mirror, add_selection, selected

if TYPE_CHECKING:
    from images.build import BuildOptions

COMMANDS_HELP = """commands (each has its own --help):
  list         backends, aliases, versions and the state of their locks
  lock         resolve a backend, or build.py's own tools, to hashes
  render       write everything under images/rendered/
  lint         house rules on specs, locks and rendered files
  wheelhouse   collect every wheel of a lock for a build without a network
  reproduce    build twice without a cache, compare digests, explain any difference
  matrix       what goes with what, and what was shown to work
  build-info   describe a virtual environment that was made from a lock"""


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code. Faults are two lines on stderr, never a traceback."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        command = given[0] if given and not given[0].startswith("-") else None
        if command is None:
            run_build(given)
        else:
            _command(command)(given[1:])
        sys.stdout.flush()
    except UserError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    except ModuleNotFoundError as error:
        if error.name not in ("pydantic", "yaml", "jinja2"):
            raise
        hint = "python3 -m pip install --require-hashes -r images/locks/tools/requirements.txt"
        print(UserError(f"build.py: {error.name} is not installed", hint), file=sys.stderr)
        return EXIT_UNAVAILABLE
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader, such as `head`, has enough: not a fault, and nothing more can be said on stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _command(name: str) -> Callable[[list[str]], None]:
    commands = {
        "list": run_list,
        "lock": run_lock,
        "render": run_render,
        "lint": run_lint,
        "wheelhouse": run_wheelhouse,
        "reproduce": run_reproduce,
        "matrix": run_matrix,
        "build-info": run_build_info,
    }
    if name in commands:
        return commands[name]
    close = difflib.get_close_matches(name, commands, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"commands: {', '.join(commands)}"
    raise UserError(f"build.py: unknown command {name!r}", hint, EXIT_USAGE)


def run_build(given: list[str]) -> None:
    """`build.py --backend NAME`: render and build an image."""
    parser = Parser(
        prog="build.py",
        description=__doc__,
        epilog=COMMANDS_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_build_options(parser)
    if not given:
        parser.print_help()
        return
    options = parser.parse_args(given)
    if not options.backend:
        parser.error("--backend is missing")

    from images.build import build

    chosen = _chosen(options)
    (spec,) = selected(options)
    digest = build(spec, chosen)
    if digest:
        print(digest)


def _chosen(options: argparse.Namespace) -> BuildOptions:
    from images.build import BuildOptions

    if options.network == "none" and not options.wheelhouse:
        raise UserError(
            "--network none: there is no --wheelhouse", "build.py wheelhouse makes one", EXIT_USAGE
        )
    return BuildOptions(
        options.tag,
        options.output,
        options.push,
        options.no_cache,
        options.render_only,
        options.base_image,
        options.allow_unresolved_base,
        options.network,
        sources_from(options),
    )


def _add_build_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add_selection(parser)
    add("--render-only", action="store_true", help="write the files, build nothing")
    add(
        "--tag",
        action="append",
        default=[],
        metavar="REF",
        help="name of the image, instead of isotune:<image>",
    )
    add(
        "--output",
        type=_oci_path,
        metavar="oci:PATH",
        help="write an OCI layout (or a .tar) instead of tagging",
    )
    add("--push", action="store_true", help="push the tags afterwards")
    add("--no-cache", action="store_true", help="repeat every step")
    add("--base-image", metavar="REF", help="another base image; the image is labelled so")
    add("--allow-unresolved-base", action="store_true", help="build on a base whose digest is not known")
    add_source_options(parser)
    network = "let build steps use the host's network, or none: then --wheelhouse must have every wheel"
    add("--network", choices=["host", "none"], help=network)


def _oci_path(text: str) -> Path:
    kind, _, path = text.partition(":")
    if kind != "oci" or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not oci:PATH")
    return Path(path).resolve()


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

    if everything:
        lines = lock.check_all(selected(options))
    elif options.tools:
        lines = [lock.check_tools()] if options.check else lock.lock_tools(options.upgrade, options.index_url)
    else:
        (spec,) = selected(options)
        if options.check:
            lines = [lock.check_backend(spec)]
        else:
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
    whole = None if options.backend else render.RENDERED
    if options.check:
        render.check(files, whole)
        print(f"{len(files)} rendered files are up to date")
    else:
        changed = render.write(files, whole)
        print(f"rendered {len(files)} files, {len(changed)} changed")


def run_reproduce(given: list[str]) -> None:
    """`build.py reproduce`: two cold builds, one digest; else what differs, file by file, and exit code 1."""
    parser = Parser(prog="build.py reproduce", description=run_reproduce.__doc__, allow_abbrev=False)
    _add_build_options(parser)
    against = "a digest or layout that stands for the first of the two builds"
    parser.add_argument("--against", metavar="sha256:DIGEST|oci:PATH", help=against)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="a new folder that keeps the layouts")
    options = parser.parse_args(given)
    without_effect = ("render_only", "tag", "output", "push", "no_cache")
    wrong = [f"--{name.replace('_', '-')}" for name in without_effect if getattr(options, name)]
    if wrong or not options.backend:
        parser.error(f"{', '.join(wrong)}: has no effect here" if wrong else "--backend is missing")
    if options.against and not options.against.startswith(("sha256:", "oci:")):
        parser.error(f"--against: {options.against!r} is neither sha256:DIGEST nor oci:PATH")
    if options.keep and options.keep.exists():
        parser.error(f"--keep: {options.keep} exists already")

    from images.reproduce import reproduce

    (spec,) = selected(options)
    print(reproduce(spec, _chosen(options), options.against, options.keep))


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
    print(build_info_for(spec, options.prefix))


if __name__ == "__main__":
    sys.exit(main())
