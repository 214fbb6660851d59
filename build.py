#!/usr/bin/env python3
"""Build verified fine-tuning images: `build.py --backend NAME`, and the commands around it."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Callable

from images.errors import EXIT_UNAVAILABLE, EXIT_USAGE, UserError, told

# Name -> the function in images/ that runs it, and what its line in --help says.
COMMANDS = {
    "list": ("commands.run_list", "backends, aliases, versions and the state of their locks"),
    "lock": ("commands.run_lock", "resolve a backend, or build.py's own tools, to hashes"),
    "render": ("commands.run_render", "write everything under images/rendered/ and compose/rendered/"),
    "lint": ("commands.run_lint", "house rules on specs, locks and rendered files"),
    "wheelhouse": ("commands.run_wheelhouse", "collect every wheel of a lock for a build without a network"),
    "reproduce": (
        "build_commands.run_reproduce",
        "build twice without a cache, compare digests, explain any difference",
    ),
    "verify": (
        "inventory_commands.run_verify",
        "run an image's own verification on this host",
    ),
    "inventory": ("inventory_commands.run_inventory", "SBOM, licences and provenance of an image"),
    "sign": ("inventory_commands.run_sign", "sign an inventory, or an image in a registry, by cosign"),
    "verify-signature": ("inventory_commands.run_verify_signature", "compare a signature"),
    "matrix": ("commands.run_matrix", "what goes with what, and what was shown to work"),
    "sizes": ("commands.run_sizes", "what takes the space of the images, layer by layer"),
    "doctor": ("doctor.run_doctor", "is this host ready, and which line starts a backend here?"),
    "build-info": (
        "commands.run_build_info",
        "describe a virtual environment that was made from a lock",
    ),
    "launch": (
        "launch.command.run_launch",
        "print a ready file for compose, Kubernetes, Trainer or Volcano",
    ),
}


def main(arguments: list[str] | None = None) -> int:
    """Run one command; returns the exit code. Faults are two lines on stderr, never a traceback."""
    given = sys.argv[1:] if arguments is None else arguments
    try:
        command = given[0] if given and not given[0].startswith("-") else None
        if command is None:
            from images.build_commands import run_build

            run_build(given, __doc__, commands_help())
        else:
            _command(command)(given[1:])
        if sys.stdout is not None:  # closed by who called
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
        _silence_stdout()
    except OSError as error:
        fault = told(error)
        print(fault, file=sys.stderr)
        _silence_stdout()
        return fault.exit_code
    return 0


def _silence_stdout() -> None:
    """What waits to be written goes nowhere: writing it at the end would fail once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def commands_help() -> str:
    """The lines of --help that list the commands."""
    lines = [f"  {name:<16} {help_line}" for name, (_, help_line) in COMMANDS.items()]
    return "\n".join(["commands (each has its own --help):", *lines])


def _command(name: str) -> Callable[[list[str]], None]:
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"commands: {', '.join(COMMANDS)}"
        raise UserError(f"build.py: unknown command {name!r}", hint, EXIT_USAGE)
    module, _, function = COMMANDS[name][0].rpartition(".")
    return getattr(importlib.import_module(f"images.{module}"), function)


if __name__ == "__main__":
    sys.exit(main())
