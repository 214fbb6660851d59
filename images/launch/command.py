"""`build.py launch`: options in, one file on stdout."""

from __future__ import annotations

import shlex

from images.errors import UserError
from images.launch.decide import decide, option_faults, refused
from images.launch.options import SHAPES
from images.launch.text import render_launch
from images.launch.words import launch_parser, read_words, unknown_words
from images.spec import BackendSpec
from images.specfile import find_spec, load_specs


def run_launch(given: list[str]) -> None:
    """`build.py launch`: print a ready file for compose, Kubernetes, Trainer or Volcano."""
    print(launch_text(given), end="")


def launch_text(given: list[str], specs: dict[str, BackendSpec] | None = None) -> str:
    """Return the file that these words ask for; raises UserError with every fault in them."""
    options, unknown = launch_parser().parse_known_args(given)
    values, faults = read_words(options)
    faults = [*unknown_words(unknown), *faults]
    backend, shape = getattr(options, "backend", None), getattr(options, "shape", None)
    if not backend or not shape:
        faults += [] if backend else ["--backend: is missing; build.py list shows them"]
        faults += [] if shape else [f"--as: is missing; one of {', '.join(SHAPES)}"]
        raise refused([*faults, *option_faults(shape or "compose", values)])
    try:
        spec = find_spec(backend, specs or load_specs(), getattr(options, "variant", None))
    except UserError as error:
        raise refused([*faults, f"{error.message}; {error.hint}", *option_faults(shape, values)]) from error
    launch = decide(spec, shape, values, faults)
    return render_launch(launch, [f"Printed by: build.py launch {' '.join(shlex.join(given).split())}"])
