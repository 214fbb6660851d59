"""A spec's further options of `docker run`, taken apart: compose and Kubernetes have other words for them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Extras:
    """`gpus`: the engine hands out cards by --gpus. The rest are exceptions, off unless asked for."""

    gpus: bool = False
    capabilities: list[str] = field(default_factory=list)
    security: list[str] = field(default_factory=list)
    ulimits: dict[str, tuple[int, int]] = field(default_factory=dict)
    unknown: list[str] = field(default_factory=list)

    @property
    def exceptions(self) -> bool:
        return bool(self.capabilities or self.security or self.ulimits)

    @property
    def seccomp_off(self) -> bool:
        return "seccomp=unconfined" in self.security


def extras(options: list[str]) -> Extras:
    """Take options apart; what has no place in a manifest is in `unknown`, never dropped."""
    found = Extras()
    for option in options:
        name, _, value = option.partition("=")
        if name == "--gpus":
            found.gpus = True
        elif name == "--cap-add":
            found.capabilities.append(value)
        elif name == "--security-opt":
            found.security.append(value)
        elif name == "--ulimit" and value.count("=") == 1:
            limit, _, numbers = value.partition("=")
            soft, _, hard = numbers.partition(":")
            found.ulimits[limit] = (int(soft), int(hard or soft))
        else:
            found.unknown.append(option)
    return found
