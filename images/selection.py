"""The options that choose a backend and a variant, shared by the commands; asking needs nothing installed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from images.errors import UserError

if TYPE_CHECKING:
    from images.spec import BackendSpec


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add --backend and --variant."""
    parser.add_argument("--backend", metavar="NAME", help="which backend: see `build.py list`")
    parser.add_argument("--variant", metavar="NAME", help="which variant of it, if not its default")


def add_mirror(parser: argparse.ArgumentParser) -> None:
    """Add --mirror, which may be given several times."""
    what = "ask another host: registry or index"
    parser.add_argument("--mirror", action="append", default=[], metavar="HOST=HOST", help=what)


def selected(options: argparse.Namespace) -> list[BackendSpec]:
    """Return the spec that --backend and --variant choose, or all where no backend is named."""
    from images.specfile import find_spec, load_specs

    if options.variant and not options.backend:
        raise UserError("--variant: needs a backend", "add --backend NAME")
    specs = load_specs()
    return [find_spec(options.backend, specs, options.variant)] if options.backend else list(specs.values())
