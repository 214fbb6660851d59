"""Licences of installed packages as their own metadata says, and the list of them. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from email.message import Message
from typing import Any

# Words that mean one SPDX licence and no other; `Apache` or `BSD License` alone could be several.
SPDX = {
    "MIT": "MIT",
    "MIT License": "MIT",
    "The MIT License": "MIT",
    "Apache-2.0": "Apache-2.0",
    "Apache 2.0": "Apache-2.0",
    "Apache 2.0 License": "Apache-2.0",
    "Apache License 2.0": "Apache-2.0",
    "Apache License, Version 2.0": "Apache-2.0",
    "BSD-2-Clause": "BSD-2-Clause",
    "BSD-3-Clause": "BSD-3-Clause",
    "BSD 3-Clause License": "BSD-3-Clause",
    "ISC": "ISC",
    "ISC License": "ISC",
    "ISC License (ISCL)": "ISC",
    "MPL-2.0": "MPL-2.0",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "PSF-2.0": "PSF-2.0",
    "LGPL-2.1-or-later": "LGPL-2.1-or-later",
    "Zlib": "Zlib",
    "Unlicense": "Unlicense",
}
LONGEST_NAME = 80
NONE_KNOWN = "no licence known"
ABOUT = (
    "As the packages' own metadata says it: nobody has compared it with their files.",
    "Texts: *.dist-info of each Python package; /usr/share/doc/NAME/copyright of each system package,",
    "which is read here only where it is in Debian's machine-readable form.",
)


@dataclass(frozen=True)
class Licence:
    """A licence. kind: an SPDX `expression`, an SPDX `id`, or a `name` that means no single SPDX licence."""

    kind: str
    words: str


def of_python(metadata: Message) -> list[Licence]:
    """Return what a Python package's METADATA says: an expression (PEP 639), a field, or classifiers.

    A field that holds a whole text says less than the classifiers do. Empty where nothing is said.
    """
    expression = (metadata.get("License-Expression") or "").strip()
    if expression:
        return [Licence("expression", expression)]
    field = (metadata.get("License") or "").strip()
    if field in SPDX:
        return [Licence("id", SPDX[field])]
    if _is_expression(field):
        return [Licence("expression", field)]
    classifiers = [str(line) for line in metadata.get_all("Classifier") or []]
    named = [line.rpartition(" :: ")[2] for line in classifiers if line.startswith("License :: ")]
    named = [name for name in named if name != "OSI Approved"]
    short = field if len(field) <= LONGEST_NAME and "\n" not in field else ""
    words = named or [short] * bool(short and short.upper() != "UNKNOWN")
    return [_named(word) for word in dict.fromkeys(words)]


def of_debian(text: str) -> list[Licence]:
    """Return the licences that a machine-readable copyright file names (Debian's format 1.0), in its order.

    Empty for a file in another form: its words are not guessed at.
    """
    if not re.match(r"\s*Format:\s*https?://\S*copyright-format", text):
        return []
    names = re.findall(r"^License:[ \t]*(\S.*?)[ \t]*$", text, re.MULTILINE)
    return [_named(name) for name in dict.fromkeys(names)]


def entries(licences: list[Licence]) -> list[dict[str, Any]]:
    """Return CycloneDX's form: one expression, or any number of ids and names."""
    if len(licences) == 1 and licences[0].kind == "expression":
        return [{"expression": licences[0].words}]
    return [{"license": {"id" if one.kind == "id" else "name": one.words}} for one in licences]


def _named(word: str) -> Licence:
    return Licence("id", SPDX[word]) if word in SPDX else Licence("name", word)


def _is_expression(text: str) -> bool:
    parts = re.split(r"\s+(?:AND|OR)\s+", text)
    return len(parts) > 1 and all(part in SPDX.values() for part in parts)


def licence_list(title: str, components: Iterable[dict[str, Any]]) -> str:
    """Return the list for a reader: each licence with its packages; those without a known one come first."""
    groups: dict[str, list[str]] = {NONE_KNOWN: []}
    for component in components:
        label = _label(component.get("licenses", []))
        kind = component["purl"].partition("/")[0].removeprefix("pkg:")
        groups.setdefault(label, []).append(f"  {kind}  {component['name']} {component['version']}")
    lines = [title, *ABOUT, ""]
    for label in sorted(groups, key=lambda name: (name != NONE_KNOWN, name.lower())):
        lines += [f"{label} ({len(groups[label])})", *sorted(groups[label]), ""]
    return "\n".join(lines)


def _label(licences: list[dict[str, Any]]) -> str:
    words = [one.get("expression") or one["license"].get("id") or one["license"]["name"] for one in licences]
    return ", ".join(words) or NONE_KNOWN
