"""Make a launch of options: what is wrong, missing or without effect is told at once, with its cure."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from images.errors import EXIT_USAGE, UserError
from images.launch.checks import cross_faults
from images.launch.options import SHAPES, LaunchOptions, Shape
from images.launch.places import Place, place
from images.launch.plan import Launch
from images.launch.recipe_text import recipe_fault
from images.launch.words import FIELDS, flag
from images.lockfile import lock_status
from images.spec import ROOT, BackendSpec

PLACE_FIELDS = ("model", "data", "eval_data", "output")


def decide(spec: BackendSpec, shape: str, values: dict[str, Any], earlier: list[str] | None = None) -> Launch:
    """Return the launch of a backend; `values`: field -> value, `earlier`: faults found before.

    Raises UserError (64) with every fault.
    """
    faults = list(earlier or [])
    if shape not in SHAPES:
        close = difflib.get_close_matches(shape, SHAPES, n=1)
        suggestion = f"did you mean {close[0]}? " if close else ""
        faults.append(f"--as {shape}: is unknown; {suggestion}known: {', '.join(SHAPES)}")
        shape = close[0] if close else "job"
    options, wrong = _options(shape, values)
    faults += wrong
    launch, wrong = _launch(spec, shape, options)  # type: ignore[arg-type]
    faults += wrong
    faults += cross_faults(launch, set(values))
    if faults:
        raise refused(faults)
    return launch


def refused(faults: list[str]) -> UserError:
    """Return the error that tells all faults."""
    several = f"{len(faults)} faults" if len(faults) > 1 else "one fault"
    return UserError("\n".join(dict.fromkeys(faults)), f"{several}; build.py launch --help", EXIT_USAGE)


def option_faults(shape: str, values: dict[str, Any]) -> list[str]:
    """Return what is wrong with each option by itself, whatever the backend is."""
    return _options(shape, values)[1]


def _options(shape: str, values: dict[str, Any]) -> tuple[LaunchOptions, list[str]]:
    """Validate; what is wrong is left out, so that the rest can be looked at too."""
    try:
        return LaunchOptions.model_validate(values), []
    except ValidationError as error:
        details = error.errors(include_url=False)
    wrong = {str(item["loc"][0]) for item in details}
    stand_in = "/stand-in" if shape == "compose" else "pvc:stand-in"
    rest = {key: value for key, value in values.items() if key not in wrong}
    rest |= {name: stand_in for name in wrong if name in FIELDS and FIELDS[name].is_required()}
    return LaunchOptions.model_validate(rest), [_explain(shape, item) for item in details]


def _explain(shape: str, error: Any) -> str:
    """Return one of pydantic's errors as an option, its value and the cure."""
    name, value = str(error["loc"][0]), error["input"]
    description = FIELDS[name].description or ""
    if error["type"] == "missing":
        example = f"./{name}" if shape == "compose" else f"pvc:CLAIM/{name}"
        return f"{flag(name)}: is missing; add {flag(name)} {example} ({description})"
    if error["type"] == "value_error":
        what = str(error["ctx"]["error"])
        return f"{flag(name)} {value}: {what}" if isinstance(value, str) else f"{flag(name)}: {what}"
    if error["type"] == "literal_error":
        return f"{flag(name)} {value}: is none of {error['ctx']['expected']}"
    what = re.sub(r"^(Input|String|Value) ", "", error["msg"])
    return f"{flag(name)} {value}: {what}; it is: {description}"


def _launch(spec: BackendSpec, shape: Shape, options: LaunchOptions) -> tuple[Launch, list[str]]:
    places: dict[str, Place] = {}
    faults: list[str] = []
    for role in PLACE_FIELDS:
        value = getattr(options, role)
        if value is None:
            continue
        found = place(role, value)
        if isinstance(found, str):
            faults.append(f"{flag(role)}: {found}")
            continue
        places[role] = found
        if found.claim and shape == "compose":
            faults.append(f"{flag(role)} {value}: compose knows no claims; give a path of the host")
        if not found.claim and shape != "compose":
            faults.append(f"{flag(role)} {value}: a pod has no path of the host; give pvc:NAME[/sub/path]")
    recipe, file, text, wrong = _recipe(options.recipe)
    faults += wrong
    image = options.image or f"isotune:{spec.image}-{_lock_id(spec)}"
    places.setdefault("output", Place("output", None, "./out", "/out", False))
    return Launch(shape, spec, options, image, places, recipe, file, text), faults


def _recipe(given: str | None) -> tuple[str | None, Path | None, str, list[str]]:
    """Return the recipe's name, its file and text if it is the user's own, and what is wrong with it."""
    if given is None:
        return None, None, "", []
    shipped = sorted(path.stem for path in (ROOT / "train" / "recipes").glob("*.yaml"))
    if given in shipped:
        return given, None, "", []
    path = Path(given)
    if path.suffix not in (".yaml", ".yml") and "/" not in given:
        close = difflib.get_close_matches(given, shipped, n=1)
        suggestion = f"did you mean {close[0]}? " if close else ""
        return (
            given,
            None,
            "",
            [f"--recipe {given}: {suggestion}shipped are {', '.join(shipped)}; or a .yaml file"],
        )
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        what = getattr(error, "strerror", None) or "is not UTF-8"
        return (
            given,
            path,
            "",
            [f"--recipe {given}: {what}; give a YAML file, or one of {', '.join(shipped)}"],
        )
    fault = recipe_fault(text)
    return given, path, text, [f"--recipe {given}: {fault}"] if fault else []


def _lock_id(spec: BackendSpec) -> str:
    _, lock = lock_status(spec)
    return lock.lock_id if lock else "missing"
