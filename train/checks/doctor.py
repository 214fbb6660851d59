"""`train doctor`: what this container has and lacks of what its image needs, and the lines that mend it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from train.checks.host.examine import Examination, examine
from train.checks.host.needs import read_needs
from train.checks.host.root import Root
from train.errors import EXIT_CONFIG, UserError
from train.image import VARIABLE, read_build_info


def doctor_command(
    as_json: Annotated[bool, typer.Option("--json", help="a JSON object in place of the lines")] = False,
    root: Annotated[
        Path, typer.Option(help="look below another root, such as a host's that is mounted", metavar="DIR")
    ] = Path("/"),
) -> None:
    """What this container has and lacks of what its image needs, and the line that fixes it."""
    report = doctor(root)
    typer.echo(json.dumps(report.as_dict(), indent=2) if as_json else "\n".join(report.lines()))
    raise typer.Exit(report.exit_code)


def doctor(folder: Path = Path("/")) -> Examination:
    """Examine this container by its image's build info; UserError (exit 78) where there is none."""
    image = read_build_info()
    if image is None:
        raise UserError(
            "doctor: there is no build-info.json: what this environment needs is not known",
            f"run it in an image, or make one with build.py build-info; {VARIABLE} names another place",
            EXIT_CONFIG,
        )
    needs = read_needs(image)
    return examine(needs, Root(folder, tool_folders=needs.tool_folders))
