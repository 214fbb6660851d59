"""The steps that device_check.py measures: models of real shapes, with PEFT's layers and with ours."""

from __future__ import annotations

import gc
import importlib
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from adapted import SMALL, adapt
from workload import lengths

WHOLE = {
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151_936,
}
"""Qwen2.5-0.5B."""
WIDE = {
    "hidden_size": 3584,
    "intermediate_size": 18_944,
    "num_hidden_layers": 4,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152_064,
}
"""Layers of Qwen2.5-7B, four of its 28."""
TINY = SMALL | {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
BATCH, PROMPT_SHARE = 8, 0.4
VARIANTS = {
    "bare, padded": ("bare", False),
    "PEFT LoRA, padded": ("PEFT LoRA", False),
    "PEFT OFT series, padded": ("PEFT OFT series", False),
    "PEFT OFT exact, padded": ("PEFT OFT exact", False),
    "isotune LoRA, packed": ("LoRA", True),
    "isotune OFT series, packed": ("OFT series", True),
    "isotune OFT exact, packed": ("OFT exact", True),
}
"""Name -> which layers, and whether by isotune's packed rows and loss; else padded, with the model's own."""


class Skipped(Exception):
    """Why a part cannot run here."""


@dataclass(frozen=True)
class Place:
    """Where the parts run. is_dry: tiny shapes, so that every line runs anywhere. seconds: of a variant."""

    device: str
    is_dry: bool
    seconds: float

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32 if self.is_dry else torch.bfloat16

    def autocast(self) -> Any:
        return torch.autocast(self.device, dtype=torch.bfloat16, enabled=not self.is_dry)

    def wait(self) -> None:
        """Until the device has done what it was given."""
        if self.device != "cpu":
            getattr(torch, self.device).synchronize()

    def peak_bytes(self) -> int | None:
        return getattr(torch, self.device).max_memory_allocated() if self.device != "cpu" else None

    def begin(self) -> None:
        """Give back what the last one held, and count memory anew."""
        gc.collect()
        if self.device != "cpu":
            module = getattr(torch, self.device)
            module.empty_cache()
            module.reset_peak_memory_stats()


def stepper(
    place: Place, sizes: dict[str, int], layers: str, is_packed: bool
) -> tuple[Callable[[], None], int]:
    """One training step of a model of these sizes with these layers, and the real tokens of its batch."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    if layers != "bare":
        require(
            "peft", "isotune's adapters are layers of PEFT" if is_packed else "it is what is compared with"
        )
    torch.manual_seed(0)
    with torch.device(place.device):
        model: Any = Qwen2ForCausalLM(Qwen2Config(max_position_embeddings=2048, **sizes)).to(place.dtype)
    model.train()
    if layers == "bare":
        model.requires_grad_(False)
        model.enable_input_require_grads()
    else:
        model = adapt(model, layers, rank=8, block=32)
    trained = [one for one in model.parameters() if one.requires_grad]
    for one in trained:
        torch.nn.init.normal_(one, std=0.01)
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True) if trained else None
    batch, tokens = _batch(place, sizes["vocab_size"], is_packed)
    compute = _packed_loss if is_packed else _plain_loss

    def step() -> None:
        with place.autocast():
            value = compute(model, batch)
        value.backward()
        if optimizer:
            optimizer.step()
            optimizer.zero_grad()

    return step, tokens


def require(module: str, why: str) -> None:
    """`Skipped` where a module is not installed, or does not import here."""
    if find_spec(module) is None:
        raise Skipped(f"{module} is not installed: {why}")
    try:
        importlib.import_module(module)
    except Exception as fault:
        raise Skipped(f"{module} does not import: {fault}: {why}") from None


def _batch(place: Place, vocabulary: int, is_packed: bool) -> tuple[dict[str, Any], int]:
    """Eight samples of real lengths, the same for every variant."""
    from train.data.collate import pack, pad
    from train.data.sample import IGNORED, Sample

    draw = random.Random(0)
    samples = []
    for drawn in lengths(BATCH, draw):
        length = drawn // 8 if place.is_dry else drawn
        ids = [draw.randrange(vocabulary) for _ in range(length)]
        prompt = int(PROMPT_SHARE * length)
        samples.append(Sample(ids, [IGNORED] * prompt + ids[prompt:], "drawn"))
    batch = (pack if is_packed else pad)(samples, 0)
    on_device = {key: one.to(place.device) if torch.is_tensor(one) else one for key, one in batch.items()}
    return on_device, batch["num_tokens"]


def _plain_loss(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
    return model(**inputs, use_cache=False).loss


def _packed_loss(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    from train.loop.attention import BY_SAMPLE, no_mask
    from train.loop.loss import target_loss

    base = model.get_base_model()
    if base.config._attn_implementation != BY_SAMPLE:
        base.set_attn_implementation(BY_SAMPLE)
    inputs = {name: batch[name] for name in ("input_ids", "position_ids", "sample_lengths")}
    with no_mask():
        return target_loss(model, model, inputs, batch["labels"]).total / batch["num_target_tokens"]


def per_call(place: Place, call: Callable[[], Any], seconds: float = 1.0) -> float:
    """Seconds of one call: two to warm up, then as many as fit, at most 50."""
    for _ in range(2):
        call()
    place.wait()
    count, started = 0, time.perf_counter()
    while count < 50 and (count < 3 or time.perf_counter() - started < seconds):
        call()
        count += 1
        place.wait()
    return (time.perf_counter() - started) / count
