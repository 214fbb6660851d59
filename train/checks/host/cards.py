"""What the vendor's tool tells of each card: power, temperature, utilisation, memory, health."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from train.checks.host.finding import FAILED, NOTE, PRESENT, UNKNOWN, Seen
from train.checks.host.needs import Needs
from train.checks.host.root import TOOL_SECONDS, Root

MIB = 1 << 20
NUMBER = re.compile(r"\s*(\d{1,9}(?:\.\d{1,9})?)")


@dataclass(frozen=True)
class Card:
    """A card at one moment; what the tool does not tell is None, never 0. Memory: in bytes, or as a share."""

    index: int
    name: str | None = None
    health: str | None = None
    power_watts: float | None = None
    power_cap_watts: float | None = None
    temperature_celsius: float | None = None
    utilisation_percent: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    memory_percent: float | None = None

    def figures(self) -> dict[str, Any]:
        """What is known."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Reading:
    """What a tool told. fault: why there are no cards, in the tool's own words where it has some."""

    tool: str
    cards: tuple[Card, ...]
    fault: str = ""
    text: str = ""
    is_absent: bool = False
    healthy: tuple[str, ...] = ()


def read_cards(telemetry: dict[str, Any], root: Root, seconds: float = TOOL_SECONDS) -> Reading:
    """Ask the first of the backend's tools that is there and tells of cards."""
    names = list(dict.fromkeys(tool["command"].split()[0] for tool in telemetry["tools"]))
    fault = f"{' and '.join(names)} not here" if names else "this backend has no tool for it"
    reading = Reading(names[0] if names else "", (), fault, is_absent=True)
    for tool in telemetry["tools"]:
        name = tool["command"].split()[0]
        if root.tool(name) is None:
            continue
        answer = root.ask(tool["command"], seconds)
        found = parse(tool["cards"], answer.text)
        fault = "" if found else answer.fault or f"{name} said what no known version of it says"
        reading = Reading(name, found, fault, answer.text, healthy=tuple(tool["healthy"]))
        if found:
            return reading
    return reading


def parse(forms: list[str], text: str) -> tuple[Card, ...]:
    """The cards in a tool's output, by the first form that finds any."""
    for form in forms:
        cards = [_card(match.groupdict()) for match in re.finditer(form, text, re.MULTILINE)]
        if cards:
            return tuple(cards)
    return ()


def _card(groups: dict[str, str | None]) -> Card:
    used, total = _number(groups.get("memory_used_mib")), _number(groups.get("memory_total_mib"))
    index = _number(groups.get("device")) if groups.get("device") else _number(groups.get("index"))
    return Card(
        index=int(index or 0),
        name=(groups.get("name") or "").strip() or None,
        health=groups.get("health"),
        power_watts=_number(groups.get("power_watts")),
        power_cap_watts=_number(groups.get("power_cap_watts")) or None,
        temperature_celsius=_number(groups.get("temperature_celsius")),
        utilisation_percent=_number(groups.get("utilisation_percent")),
        memory_used_bytes=None if used is None else int(used * MIB),
        memory_total_bytes=None if total is None else int(total * MIB),
        memory_percent=_number(groups.get("memory_percent")),
    )


def _number(text: str | None) -> float | None:
    """A figure with or without its unit; None for N/A, [Not Supported], -, and whatever else is no number."""
    match = NUMBER.match(text or "")
    value = float(match[1]) if match else None
    return value if value is not None and math.isfinite(value) else None


def look_at_cards(needs: Needs, reading: Reading) -> Iterator[Seen]:
    """Each card as the tool tells of it; its health where it tells that."""
    if reading.is_absent:
        if needs.telemetry["tools"]:
            detail = f"{reading.fault}: power, temperature and health stay unknown"
            yield Seen("tool", reading.tool, NOTE, detail, needed=False)
        return
    if not reading.cards:
        first = (reading.text.strip().splitlines() or [""])[0][:200]
        detail = reading.fault + (f": {first}" if first else "")
        yield Seen("tool", reading.tool, UNKNOWN, detail, needed=False)
        return
    for card in reading.cards:
        sound = card.health is None or not reading.healthy or card.health in reading.healthy
        cure = "" if sound else f"{reading.tool} on the host says more; take the card out of use"
        yield Seen("card", str(card.index), PRESENT if sound else FAILED, words(card), cure)


def words(card: Card) -> str:
    """A card's figures in words."""
    cap = f" of {card.power_cap_watts:g}" if card.power_cap_watts else ""
    parts = [
        card.name,
        f"health {card.health}" if card.health else None,
        f"{card.power_watts:g}{cap} W" if card.power_watts is not None else None,
        f"{card.temperature_celsius:g} °C" if card.temperature_celsius is not None else None,
        _memory(card),
    ]
    return ", ".join(part for part in parts if part)


def _memory(card: Card) -> str | None:
    if card.memory_used_bytes is not None and card.memory_total_bytes:
        return f"{card.memory_used_bytes / 2**30:.1f} of {card.memory_total_bytes / 2**30:.1f} GiB used"
    return None if card.memory_percent is None else f"{card.memory_percent:g} % of memory used"
