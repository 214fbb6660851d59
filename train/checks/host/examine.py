"""The whole examination: everything that is looked for, in order, and its report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from train import __version__
from train.checks.host import lines
from train.checks.host.cards import look_at_cards, read_cards
from train.checks.host.driver import look_at_driver, read_driver
from train.checks.host.faults import look_at_words
from train.checks.host.finding import Seen, counts, exit_code
from train.checks.host.limits import look_at_limits, look_at_places, read_limits
from train.checks.host.needs import Needs
from train.checks.host.nodes import look_at_libraries, look_at_mounts, look_at_nodes
from train.checks.host.root import Identity, Root

IMAGE_USER = Identity(1000, frozenset([0]))
"""Who an image's command runs as, where nobody says otherwise."""


@dataclass
class Examination:
    """What was found, and the lines that would start the image here."""

    needs: Needs
    where: str
    seen: list[Seen]
    docker: list[str]
    compose: list[str]
    pod: list[str]
    options: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        return exit_code(self.seen)

    def lines(self) -> list[str]:
        """The report in words."""
        title = f"doctor ({self.needs.image}, {self.where}): {counts(self.seen)}"
        parts = [title, *(line for one in self.seen for line in one.lines())]
        for name, text in (("docker run", self.docker), ("compose", self.compose), ("pod", self.pod)):
            parts += ["", f"{name} on this host:", *(f"  {line}" for line in text)]
        return parts

    def as_dict(self) -> dict[str, Any]:
        return {
            "isotune": __version__,
            "backend": self.needs.backend,
            "variant": self.needs.variant,
            "where": self.where,
            "exit_code": self.exit_code,
            "seen": [one.as_dict() for one in self.seen],
            "docker_options": self.options,
            "docker": "\n".join(self.docker),
            "compose": "\n".join(self.compose) + "\n",
            "pod": "\n".join(self.pod) + "\n",
        }


def examine(
    needs: Needs,
    root: Root,
    on_host: bool = False,
    extra: list[Seen] | None = None,
    engine: lines.Engine | None = None,
) -> Examination:
    """Look at everything that an image needs.

    on_host: the machine that would start a container, not the container: its limits and folders are not the
    container's. extra: what was found elsewhere, such as the engine. engine: what it supports.
    """
    limits = read_limits(root)
    seen = [*(extra or []), *hardware(needs, root, on_host)]
    if not on_host:
        seen += [*look_at_limits(needs, limits), *look_at_places(root)]
    conditions = set() if on_host else limits.conditions()
    options = lines.device_options(needs, root, engine or lines.Engine(), conditions, on_host)
    where = "host" if on_host else "container"
    docker = lines.docker_line(needs, options + lines.unknown_groups(needs, root, on_host))
    compose, pod = lines.compose_lines(needs, options), lines.pod_lines(needs, root, on_host)
    return Examination(needs, where, seen, docker, compose, pod, options)


def hardware(needs: Needs, root: Root, on_host: bool = False) -> list[Seen]:
    """Nodes, mounts, libraries, driver and cards; known errors in what the tools said."""
    seen = [*look_at_nodes(needs, root, on_host), *look_at_mounts(needs, root, on_host)]
    seen += look_at_libraries(needs, root, on_host)
    driver = read_driver(needs, root)
    reading = read_cards(needs.telemetry, root)
    seen += [look_at_driver(needs, driver), *look_at_cards(needs, reading)]
    said = dict.fromkeys([driver.said, "" if reading.cards else reading.text])
    return seen + look_at_words(needs.errors, reading.tool or driver.where, "\n".join(said))
