"""Commands of build.py that build images: what they take and say; the work is elsewhere."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from images.errors import EXIT_USAGE, UserError
from images.options import Parser, add_source_options, oci_path, sources_from
from images.selection import add_selection, selected

if TYPE_CHECKING:
    from images.build import BuildOptions


def run_build(given: list[str], description: str | None, epilog: str) -> None:
    """`build.py --backend NAME`: render and build an image."""
    parser = Parser(
        prog="build.py",
        description=description,
        epilog=epilog,
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
        options.platform,
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
        type=oci_path,
        metavar="oci:PATH",
        help="write an OCI layout (or a .tar) instead of tagging",
    )
    add("--push", action="store_true", help="push the tags afterwards")
    add("--no-cache", action="store_true", help="repeat every step")
    add("--base-image", metavar="REF", help="another base image; the image is labelled so")
    add("--allow-unresolved-base", action="store_true", help="build on a base whose digest is not known")
    platform = "linux/amd64 or linux/arm64, or both into one image: by default the engine's own"
    add("--platform", action="append", default=[], metavar="NAME", help=platform)
    add_source_options(parser)
    network = "let build steps use the host's network, or none: then --wheelhouse must have every wheel"
    add("--network", choices=["host", "none"], help=network)


def run_reproduce(given: list[str]) -> None:
    """`build.py reproduce`: two cold builds, one digest; else what differs, file by file, and exit code 1."""
    parser = Parser(prog="build.py reproduce", description=run_reproduce.__doc__, allow_abbrev=False)
    _add_build_options(parser)
    against = "a digest or layout that stands for the first of the two builds"
    parser.add_argument("--against", metavar="sha256:DIGEST|oci:PATH", help=against)
    record = "keep the outcome in images/evidence/reproduced, where the matrix reads it"
    parser.add_argument("--record", action="store_true", help=record)
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
    line = reproduce(spec, _chosen(options), options.against, options.keep)
    print(line)
    if options.record:
        from images import reproduced
        from images.engine import connect

        digest, base = line.split()[-1], options.base_image
        found = reproduced.outcome(spec, connect(), digest, bool(options.against), base)
        print(f"recorded: {reproduced.record(found)}", file=sys.stderr)
