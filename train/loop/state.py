"""What a checkpoint holds of a trainer beyond the adapter, and how it goes back."""

from __future__ import annotations

import random
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy
import torch
from transformers import Trainer

from train.errors import EXIT_CONFIG, EXIT_TRAINING, UserError
from train.loop.checkpoint import Checkpoint


def random_states(device_type: str) -> dict[str, Any]:
    """The states of all generators that training draws from, as numbers, text and tensors alone.

    numpy's own objects would tie the file to a numpy version: torch refuses to load them.
    """
    name, keys, *rest = numpy.random.get_state()
    states = {
        "python": list(random.getstate()),
        "numpy": [name, torch.from_numpy(numpy.asarray(keys, dtype="int64")), *rest],
        "cpu": torch.random.get_rng_state(),
    }
    if device_type != "cpu":
        states[device_type] = getattr(torch, device_type).get_rng_state()
    return states


def set_random_states(states: dict[str, Any], device_type: str) -> None:
    """Put back what `random_states` gave. A device of another type than then keeps its seeded state."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    name, keys, *rest = states["numpy"]
    numpy.random.set_state((name, keys.numpy().astype("uint32"), *rest))
    torch.random.set_rng_state(states["cpu"])
    if device_type in states and device_type != "cpu":
        getattr(torch, device_type).set_rng_state(states[device_type])


class ResumableTrainer(Trainer):
    """A Trainer whose state goes into a checkpoint's folder and comes back from it.

    `train(resume_from_checkpoint=...)` finds the place in the data and calls the methods below by name, in
    transformers 4.57 to 5.20; `require_restored` proves that it did.
    """

    start: Checkpoint | None = None
    restored: frozenset[str] = frozenset()

    def save_state(self, folder: Path, states: list[dict[str, Any]]) -> list[str]:
        """Write all but the adapter. `states`: the random states of each rank at the end of the last step."""
        optimizer: Any = self.optimizer
        scheduler: Any = self.lr_scheduler
        parts = {
            "optimizer.pt": optimizer.state_dict(),
            "scheduler.pt": scheduler.state_dict(),
            "rng_state.pt": states[0] if len(states) == 1 else {"ranks": states},
        }
        if scaler := getattr(self.accelerator, "scaler", None):
            parts["scaler.pt"] = scaler.state_dict()
        for name, content in parts.items():
            torch.save(content, folder / name)
        # The history is in metrics.jsonl; here it would grow with every step of the run.
        state = replace(self.state, log_history=[], stateful_callbacks=None)
        state.save_to_json(str(folder / "trainer_state.json"))
        return sorted(parts)

    def require_restored(self) -> None:
        """UserError (exit 70) where a resumed run is about to train without its restored state."""
        due = {"optimizer", "random states"} if self.start else set()
        if missing := due - self.restored:
            raise UserError(
                f"resume: this transformers did not ask for {', '.join(sorted(missing))} of the checkpoint",
                "use the transformers of this image's lock",
                EXIT_TRAINING,
            )

    def _load_from_checkpoint(self, *rest: Any, **named: Any) -> None:
        """The adapter is in the model already: train/loop/resume.py checks it and puts it there."""

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if self.start is None:
            return
        optimizer: Any = self.optimizer
        scheduler: Any = self.lr_scheduler
        if state := self._part("scheduler.pt"):
            scheduler.load_state_dict(state)
        else:
            scheduler.last_epoch = self.start.step - 1
            with warnings.catch_warnings():  # torch warns of a scheduler that steps before its optimizer
                warnings.simplefilter("ignore", UserWarning)
                scheduler.step()
        if state := self._part("optimizer.pt"):
            for saved, group in zip(state["param_groups"], optimizer.param_groups, strict=True):
                # How it computes is this device's choice; the file may be of another.
                saved.update({name: group[name] for name in ("fused", "foreach") if name in group})
            optimizer.load_state_dict(state)
        for group, rate in zip(optimizer.param_groups, scheduler.get_last_lr(), strict=True):
            group["lr"] = rate
        self.restored |= {"optimizer"}

    def _load_scaler(self, checkpoint: str | None) -> None:
        scaler = getattr(self.accelerator, "scaler", None)
        if self.start is None or scaler is None:
            return
        if state := self._part("scaler.pt"):
            scaler.load_state_dict(state)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if self.start is not None and (states := self._part("rng_state.pt")):
            mine = states["ranks"][self.args.process_index] if "ranks" in states else states
            set_random_states(mine, self.args.device.type)
        self.restored |= {"random states"}

    def _part(self, name: str) -> Any:
        """The content of a state file; None where the run goes on without it, as it was told to."""
        if self.start is None or name in self.start.missing:
            return None
        path = self.start.folder / name
        if not path.exists() and self.start.is_weights_only:
            return None
        if not path.exists():
            raise UserError(
                f"{path}: is missing, and this run needs it",
                "take the precision of the run so far, or --set resume=weights-only",
                EXIT_CONFIG,
            )
        return torch.load(path, map_location="cpu", weights_only=True)
