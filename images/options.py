"""What commands of build.py share: a parser that says what was meant, and where wheels come from."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from images.errors import EXIT_USAGE, UserError
from images.selection import add_mirror

if TYPE_CHECKING:
    from images.sources import Sources


class Parser(argparse.ArgumentParser):
    """argparse, with our way of saying what is wrong and what was meant."""

    def error(self, message: str) -> NoReturn:
        hint = f"{self.prog} --help"
        if message.startswith("unrecognized arguments: "):
            wrong = message.partition(": ")[2].split()[0]
            options = [option for action in self._actions for option in action.option_strings]
            close = difflib.get_close_matches(wrong.partition("=")[0], options, n=1)
            hint = f"did you mean {close[0]}?" if close else hint
        raise UserError(f"{self.prog}: {message}", hint, EXIT_USAGE)


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say where wheels come from."""
    add = parser.add_argument
    add("--wheelhouse", type=Path, metavar="DIR", help="a folder of wheels to install from")
    add("--index-url", metavar="URL", help="the package index to use instead of pip's default")
    add("--extra-index-url", action="append", default=[], metavar="URL", help="a further package index")
    add_mirror(parser)
    add(
        "--ca-bundle",
        type=Path,
        metavar="FILE",
        help="certificates of a TLS proxy (PEM): a secret of the build",
    )


def oci_path(text: str) -> Path:
    """Read oci:PATH, as an option's type."""
    kind, _, path = text.partition(":")
    if kind != "oci" or not path:
        raise argparse.ArgumentTypeError(f"{text!r} is not oci:PATH")
    return Path(path).resolve()


def sources_from(options: argparse.Namespace) -> Sources:
    """Return what these options say; raises UserError with everything in them that is not there."""
    from images.sources import Sources, check_sources, parse_mirrors

    sources = Sources(
        options.wheelhouse,
        options.index_url,
        options.extra_index_url,
        parse_mirrors(options.mirror),
        options.ca_bundle,
        no_index=getattr(options, "network", None) == "none",
    )
    check_sources(sources)
    return sources
