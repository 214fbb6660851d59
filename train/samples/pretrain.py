"""Make the small pretrained Qwen2 that ships: `python -m train.samples.pretrain --output DIR`.

One thread, no network. The same machine and library versions give the same bytes; others come close. A killed
run goes on where it was, from `DIR.part`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train.checks.tiny import train_tokenizer, write_tokenizer_files
from train.loop.model import quiet_libraries, share_files
from train.samples.corpus import END, Corpus, make_corpus

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

SEED = 0
NUM_TOKENS = 2000
"""The tokenizer's size. The model has more rows, as Qwen's do."""
NUM_DOCUMENTS = 40_000
LENGTH = 128
"""Tokens of a row: some three documents, the first one from its start."""

CONFIG: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 192,
    "intermediate_size": 512,
    "num_hidden_layers": 5,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


@dataclass(frozen=True)
class Plan:
    """How long and how fast: the learning rate rises for `warmup` steps and would fall to zero at `horizon`
    (cosine). The last steps before it teach little more, so the training ends at `steps`.
    """

    steps: int = 900
    horizon: int = 1200
    batch: int = 16
    learning_rate: float = 3e-3
    warmup: int = 60
    save_steps: int = 50

    def rate(self, step: int) -> float:
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        share = (step - self.warmup) / (self.horizon - self.warmup)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * share))


def make_tokenizer(corpus: Corpus) -> Any:
    """A byte-level BPE of the corpus; each digit is a token of its own, as in Qwen."""
    from tokenizers import pre_tokenizers

    split = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    return train_tokenizer(corpus.documents, NUM_TOKENS, pre_tokenizers.Sequence(split))


def make_rows(tokenizer: Any, documents: list[str]) -> torch.Tensor:
    """Token ids, [rows, LENGTH]: whole documents one after the other, the last one of a row cut off."""
    import torch

    rows: list[list[int]] = [[]]
    for encoded in tokenizer.encode_batch([text + END for text in documents]):
        rows[-1] += encoded.ids
        if len(rows[-1]) >= LENGTH:
            rows[-1] = rows[-1][:LENGTH]
            rows.append([])
    return torch.tensor(rows[:-1])


def new_model() -> PreTrainedModel:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(SEED)
    return Qwen2ForCausalLM(Qwen2Config(**CONFIG))


def batch_of(rows: torch.Tensor, step: int, size: int) -> torch.Tensor:
    """The rows of a step: every row once per epoch, in an order that epoch and seed decide."""
    import torch

    per_epoch = len(rows) // size
    epoch, number = divmod(step, per_epoch)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(SEED + epoch))
    return rows[order[number * size : (number + 1) * size]]


def loss_of(model: Any, rows: torch.Tensor) -> torch.Tensor:
    """Mean loss over all tokens of the rows but the first ones, in nats."""
    import torch

    logits = model(input_ids=rows, use_cache=False).logits[:, :-1]
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())


def train(model: PreTrainedModel, rows: torch.Tensor, plan: Plan, part: Path | None = None) -> list[float]:
    """Train in place; the loss of each step. `part`: file of a checkpoint, read where it exists."""
    import torch

    decayed = [tensor for tensor in model.parameters() if tensor.dim() > 1]
    others = [tensor for tensor in model.parameters() if tensor.dim() == 1]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    losses = _resume(model, optimizer, part)
    if len(losses) > plan.steps:
        raise SystemExit(
            f"{part}: has {len(losses)} steps, more than the {plan.steps} of the plan: remove it"
        )
    model.train()
    for step in range(len(losses), plan.steps):
        for group in optimizer.param_groups:
            group["lr"] = plan.rate(step)
        loss = loss_of(model, batch_of(rows, step, plan.batch))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if part and (step + 1) % plan.save_steps == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "losses": losses}
            torch.save(state, part.with_suffix(".new"))
            part.with_suffix(".new").replace(part)
            mean = sum(losses[-plan.save_steps :]) / plan.save_steps
            print(f"{time.strftime('%H:%M:%S')} step {step + 1} of {plan.steps}: loss {mean:.4f}", flush=True)
    return losses


def _resume(model: Any, optimizer: Any, part: Path | None) -> list[float]:
    import torch

    if part is None or not part.exists():
        return []
    state = torch.load(part, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return list(state["losses"])


def held_out_loss(model: Any, rows: torch.Tensor) -> float:
    """Loss per token of documents that no training row holds, in nats."""
    import torch

    model.eval()
    with torch.no_grad():
        parts = [(loss_of(model, part).item(), len(part)) for part in rows.split(32)]
    return sum(loss * count for loss, count in parts) / len(rows)


def make(output: Path, plan: Plan) -> None:
    """Write the checkpoint, and `made.json` with what it was made of and how far it came."""
    import tokenizers
    import torch
    import transformers

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    quiet_libraries()
    corpus = make_corpus(NUM_DOCUMENTS, SEED)
    tokenizer = make_tokenizer(corpus)
    rows, held_out = (make_rows(tokenizer, part) for part in (corpus.documents, corpus.held_out))
    model: Any = new_model()
    started = time.perf_counter()
    output.mkdir(parents=True, exist_ok=True)
    part = output.with_name(f"{output.name}.part")
    losses = train(model, rows, plan, part)
    model.to(torch.bfloat16).save_pretrained(str(output))
    write_tokenizer_files(output, tokenizer)
    versions = {module.__name__: module.__version__ for module in (torch, transformers, tokenizers)}
    made = {
        "by": "python -m train.samples.pretrain",
        "seed": SEED,
        "steps": plan.steps,
        "training_tokens": plan.steps * plan.batch * LENGTH,
        "documents": len(corpus.documents),
        "documents_sha256": hashlib.sha256("\0".join(corpus.documents).encode()).hexdigest(),
        "parameters": sum(tensor.numel() for tensor in model.parameters()),
        "last_loss": round(sum(losses[-50:]) / 50, 4),
        "held_out_loss": round(held_out_loss(model.float(), held_out), 4),
        "versions": versions,
    }
    (output / "made.json").write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    share_files(output)
    part.unlink(missing_ok=True)
    print(json.dumps(made), f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "pretrained")
    make(parser.parse_args().output, Plan())
