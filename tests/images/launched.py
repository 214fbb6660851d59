"""Launches for tests: the words of a whole one, and its documents as data."""

from __future__ import annotations

from typing import Any

import yaml

from images.launch import command
from images.specfile import load_specs

CLAIMS = ["--model=pvc:models/qwen", "--data=pvc:data/train.jsonl", "--output=pvc:results"]
FOLDERS = ["--model=./model", "--data=./data/train.jsonl", "--output=./out"]


SPECS = load_specs()


def launch_text(words: list[str]) -> str:
    """Return the file that these words ask for; the specs are read once."""
    return command.launch_text(words, SPECS)


def places(shape: str) -> list[str]:
    """Return model, data and output as a shape takes them."""
    return FOLDERS if shape == "compose" else CLAIMS


def launched(backend: str, shape: str, *words: str) -> list[Any]:
    """Return the documents of a launch."""
    text = launch_text([f"--backend={backend}", f"--as={shape}", *places(shape), *words])
    return list(yaml.safe_load_all(text))


def pod_of(documents: list[Any]) -> dict[str, Any]:
    """Return the spec of the first pod that a launch starts."""
    from images.launch.rules import pods_of

    return next(pod for document in documents for _, pod in pods_of(document))["spec"]


def container_of(documents: list[Any]) -> dict[str, Any]:
    return pod_of(documents)["containers"][0]


def variables_of(documents: list[Any]) -> dict[str, Any]:
    """Return name -> value, or the place it is read from."""
    return {
        entry["name"]: entry.get("value") or entry["valueFrom"]["fieldRef"]["fieldPath"]
        for entry in container_of(documents)["env"]
    }


def service_of(documents: list[Any], name: str = "train") -> dict[str, Any]:
    return documents[0]["services"][name]
