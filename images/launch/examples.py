"""The examples under compose/rendered: every shape for every image, as `build.py launch` prints them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from images.launch.decide import decide
from images.launch.options import SHAPES
from images.launch.text import render_launch
from images.spec import ROOT, BackendSpec

EXAMPLES = ROOT / "compose" / "rendered"
CLAIMS = {
    "model": "pvc:models/Qwen2.5-0.5B-Instruct",
    "data": "pvc:data/train.jsonl",
    "output": "pvc:results",
    "namespace": "training",
}
FOLDERS = {"model": "./model", "data": "./data/train.jsonl", "output": "./out"}
ONE_NODE = ("compose", "job")
CARDS_OF_A_NODE = 8


def example_options(spec: BackendSpec, shape: str) -> dict[str, str]:
    """Return the options of an example: one card on one node, or two whole nodes."""
    options = dict(FOLDERS if shape == "compose" else CLAIMS)
    if shape in ONE_NODE:
        return options
    options["nodes"] = "2"
    if spec.runtime.visible_devices_variable:
        options["devices"] = str(CARDS_OF_A_NODE)
    return options


def example_files(specs: Iterable[BackendSpec]) -> dict[Path, str]:
    """Return path -> text of every example."""
    files = {}
    for spec in specs:
        for shape in SHAPES:
            options = example_options(spec, shape)
            launch = decide(spec, shape, dict(options))
            words = " ".join(f"--{name} {value}" for name, value in options.items())
            head = "Rendered by `build.py render`; do not edit. It is what this prints:"
            command = f"build.py launch {spec.selection} --as {shape} {words}"
            files[EXAMPLES / spec.image / f"{shape}.yaml"] = render_launch(launch, [head, command])
    return files
