"""Power, temperature, utilisation and memory of each card while a run trains: sampled beside it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from train.checks.host.cards import Card, Reading, read_cards
from train.checks.host.root import Root
from train.loop.findings import Finding, Findings
from train.loop.metrics import CardSample

if TYPE_CHECKING:
    from train.loop.trainer import RunTrainer

TOOL_SECONDS = 15.0
FAULTS_IN_A_ROW = 3
"""After so many failures of the tool it is left alone: one that hangs may leave a process each time."""
NEAR_IN_A_ROW = 3
"""One sample near a limit is a peak; so many in a row are a state."""


class Telemetry(TrainerCallback):
    """Samples the cards in a thread while it is entered, and writes each sample at once.

    The last ones before a power failure are what the host's owner looks for.

    telemetry: the tools and limits of build-info.json. seconds: between samples. step: the last finished one.
    What is found is kept by the run's own thread, at the end of a step.
    """

    def __init__(
        self,
        telemetry: dict[str, Any],
        seconds: float,
        findings: Findings,
        root: Root,
        step: Callable[[], int],
    ) -> None:
        self.telemetry = telemetry
        self.seconds = seconds
        self.findings = findings
        self.metrics = findings.metrics
        self.root = root
        self.step = step
        self.found: deque[Finding] = deque()
        self.totals: dict[int, dict[str, float]] = {}
        self.utilisation: dict[int, tuple[float, int]] = {}  # sum and count of the samples that tell it
        self.near: dict[tuple[str, int], int] = {}
        self.num_faults = 0
        self.started = time.monotonic()
        self.is_over = threading.Event()
        self.thread = threading.Thread(target=self._watch, name="telemetry", daemon=True)

    def __enter__(self) -> Telemetry:
        if not self.telemetry["tools"] or not self.seconds:
            return self
        names = dict.fromkeys(tool["command"].split()[0] for tool in self.telemetry["tools"])
        if any(map(self.root.tool, names)):
            self.thread.start()
        elif ("no_telemetry", "note") not in self.findings.found:  # a run that goes on has it already
            self.findings.add(_absent(0, f"{' and '.join(names)} not here"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The thread ends after its sample; a tool that hangs is not waited for."""
        self.is_over.set()
        if self.thread.is_alive():
            self.thread.join(1.0)
        if kind is None:
            self._tell()

    def on_step_end(self, *rest: Any, **named: Any) -> None:
        self._tell()

    def _tell(self) -> None:
        while self.found:
            self.findings.add(self.found.popleft())

    def _watch(self) -> None:
        while not self.is_over.is_set() and self.num_faults < FAULTS_IN_A_ROW:
            try:
                reading = read_cards(self.telemetry, self.root, TOOL_SECONDS)
                self.take(reading)
            except Exception as fault:  # whatever is wrong here, it is not the run
                self._fault(f"{type(fault).__name__}: {fault}")
            self.is_over.wait(self.seconds)

    def take(self, reading: Reading) -> None:
        """Write a sample, or note why there is none."""
        if not reading.cards:
            self._fault(reading.fault)
            return
        self.num_faults = 0
        figures = [card.figures() for card in reading.cards]
        self.metrics.write_sample(CardSample(self.step(), time.monotonic() - self.started, figures))
        for card in reading.cards:
            self._count(card)
            self._judge(card)

    def _fault(self, reason: str) -> None:
        self.num_faults += 1
        if self.num_faults >= FAULTS_IN_A_ROW:
            self.found.append(_absent(self.step(), reason))

    def _count(self, card: Card) -> None:
        total = self.totals.setdefault(card.index, {"num_samples": 0})
        total["num_samples"] += 1
        for name, value in card.figures().items():
            if name in MAXIMA:
                total[f"max_{name}"] = max(value, total.get(f"max_{name}", value))
        if card.utilisation_percent is not None:
            percent, count = self.utilisation.get(card.index, (0.0, 0))
            self.utilisation[card.index] = percent, count = percent + card.utilisation_percent, count + 1
            total["mean_utilisation_percent"] = percent / count

    def _judge(self, card: Card) -> None:
        share = (card.power_watts or 0.0) / card.power_cap_watts if card.power_cap_watts else 0.0
        hot = (card.temperature_celsius or 0.0) >= self.telemetry["warn_celsius"]
        self._near("power", card, share >= self.telemetry["warn_power_share"], _near_cap)
        self._near("temperature", card, hot, _near_heat)

    def _near(self, name: str, card: Card, is_near: bool, finding: Callable[[int, Card], Finding]) -> None:
        key = name, card.index
        self.near[key] = self.near.get(key, 0) + 1 if is_near else 0
        if self.near[key] == NEAR_IN_A_ROW:
            self.found.append(finding(self.step(), card))

    def results(self) -> dict[str, Any]:
        """For run.json: the highest figures of each card; nothing where none was sampled."""
        totals = {str(index): dict(total) for index, total in self.totals.items()}
        return {"telemetry": totals} if totals else {}


def watched(image: dict[str, Any] | None, trainer: RunTrainer, findings: Findings) -> Telemetry:
    """The telemetry of a run, to be entered while it trains.

    By the tools of the image's build info, where the run is on the image's own device. The first process
    samples all cards.
    """
    seconds = trainer.saver.config.telemetry_seconds
    is_own = image is not None and image["device_type"] == trainer.callback.device_type
    if image is None or not is_own or trainer.args.process_index:
        seconds = 0.0
    telemetry = (image or {}).get("telemetry") or {"tools": []}
    folders = tuple((image or {}).get("runtime", {}).get("tool_folders", ()))
    root = Root(tool_folders=folders)
    return Telemetry(telemetry, seconds, findings, root, lambda: trainer.state.global_step)


MAXIMA = ("power_watts", "temperature_celsius", "memory_used_bytes", "memory_percent")


def _absent(step: int, reason: str) -> Finding:
    return Finding(
        "no_telemetry",
        "note",
        step,
        f"power and temperature of the cards are not watched: {reason}",
        "the vendor's tool is not in this container, or does not answer",
        "train doctor names what brings it; telemetry_seconds=0 does without",
    )


def _near_cap(step: int, card: Card) -> Finding:
    return Finding(
        "card_near_power_cap",
        "warning",
        step,
        f"card {card.index} draws {card.power_watts:g} W of its cap of {card.power_cap_watts:g} W",
        "usual under full load; where a host switches itself off it is the power supply or heat, not the run",
        "look for power events in the BMC; a lower cap by the vendor's tool, or fewer cards at once",
    )


def _near_heat(step: int, card: Card) -> Finding:
    return Finding(
        "card_hot",
        "warning",
        step,
        f"card {card.index} is at {card.temperature_celsius:g} °C",
        "the card is badly cooled, or its neighbours are hot: it slows down, or the host switches off",
        "look at fans and air; a lower power cap by the vendor's tool",
    )
