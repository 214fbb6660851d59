"""Read a Dockerfile or shell script into instructions whose text still knows its lines."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

HEREDOC = re.compile(r"<<-?\s*[\"']?(\w+)[\"']?")


@dataclass(frozen=True)
class Instruction:
    """One instruction. `text` keeps one newline per line of the file; comments in it are blank lines."""

    name: str
    text: str
    line: int

    def line_at(self, offset: int) -> int:
        """Return the file's line, from 1, of a place in `text`."""
        return self.line + self.text.count("\n", 0, offset)


def parse_dockerfile(text: str) -> list[Instruction]:
    """Return the instructions of a Dockerfile: a here-document's lines are commands."""
    lines = text.splitlines()
    found, index = [], 0
    while index < len(lines):
        if not lines[index].strip() or lines[index].lstrip().startswith("#"):
            index += 1
            continue
        start = index
        body, index = _continued(lines, index)
        body, index = _with_heredocs(body, lines, index)
        name, _, arguments = body.lstrip().partition(" ")
        found.append(Instruction(name.upper(), _shell_form(arguments), start + 1))
    return found


def parse_script(text: str) -> list[Instruction]:
    """Return a shell script as one RUN: every line is a command, without comments."""
    lines = ["" if line.lstrip().startswith("#") else _command(line) for line in text.splitlines()]
    return [Instruction("RUN", "\n".join(lines), 1)]


def _continued(lines: list[str], index: int) -> tuple[str, int]:
    parts: list[str] = []
    while index < len(lines):
        line = lines[index]
        index += 1
        if parts and line.lstrip().startswith("#"):
            parts.append("")
            continue
        more = line.rstrip().endswith("\\")
        parts.append(line.rstrip()[:-1] if more else line)
        if not more:
            break
    return "\n".join(parts), index


def _with_heredocs(body: str, lines: list[str], index: int) -> tuple[str, int]:
    for word in HEREDOC.findall(body):
        while index < len(lines) and lines[index].strip() != word:
            body += f"\n{_command(lines[index])}"
            index += 1
        body, index = f"{body}\n", index + 1
    return body, index


def _command(line: str) -> str:
    """End a line as a command, unless it goes on."""
    return line[:-1] if line.rstrip().endswith("\\") else f"{line};"


def _shell_form(arguments: str) -> str:
    """Return ["a", "b"] as `a b`: the rules read one form."""
    if not arguments.lstrip().startswith("["):
        return arguments
    try:
        return " ".join(json.loads(arguments))
    except (json.JSONDecodeError, TypeError):
        return arguments
