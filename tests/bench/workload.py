"""What throughput.py measures on: a checkpoint of real shape and random weights, rows of real lengths."""

from __future__ import annotations

import json
import math
import random
import shutil
from pathlib import Path
from typing import Any

SHAPE = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 6,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32_768,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
    "bos_token_id": 151_643,
    "eos_token_id": 151_645,
}
"""Qwen2.5-0.5B with six of its 24 layers."""
MEAN, DEVIATION, LONGEST = 180, 0.62, 670
PROMPT_SHARE = 0.4


def write_model(folder: Path, tokenizer: Path, seed: int = 0) -> None:
    """The checkpoint, fp32, with another folder's tokenizer."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(seed)
    Qwen2ForCausalLM(Qwen2Config(**SHAPE)).save_pretrained(folder)
    for path in tokenizer.iterdir():
        if path.is_file() and path.name not in ("config.json", "generation_config.json"):
            shutil.copyfile(path, folder / path.name)


def write_rows(folder: Path, tokenizer: Path, count: int, seed: int = 0) -> dict[str, int]:
    """The same rows as alpaca and as prompt and completion; how many tokens they have and are learned of."""
    from train.checks.tiny import samples_file
    from train.data.samples import Policies, load_samples
    from train.data.template import ChatTemplate
    from train.loop.model import load_tokenizer

    loaded = load_tokenizer(tokenizer)
    shipped = [json.loads(line) for line in samples_file().read_text("utf-8").splitlines()]
    texts = [f"{row['instruction']} {row['output']} " for row in shipped]
    draw = random.Random(seed)

    def text(tokens: int) -> str:
        ids: list[int] = []
        while len(ids) < tokens:
            ids += loaded(draw.choice(texts), add_special_tokens=False)["input_ids"]
        return loaded.decode(ids[:tokens]).strip() or "a"

    alpaca, messages = [], []
    for length in lengths(count, draw):
        words = max(4, length - 16)  # the template's own tokens
        prompt, answer = (
            text(max(2, int(words * PROMPT_SHARE))),
            text(max(2, int(words * (1 - PROMPT_SHARE)))),
        )
        alpaca.append({"instruction": prompt, "output": answer})
        messages.append(
            {
                "prompt": [{"role": "user", "content": prompt}],
                "completion": [{"role": "assistant", "content": answer}],
            }
        )
    for name, rows in (("alpaca", alpaca), ("messages", messages)):
        (folder / f"{name}.jsonl").write_text("".join(_line(row) for row in rows), encoding="utf-8")
    described = {
        "rows": {"file_name": "alpaca.jsonl", "columns": {"prompt": "instruction", "response": "output"}}
    }
    (folder / "dataset_info.json").write_text(json.dumps(described), encoding="utf-8")
    samples = load_samples(folder / "alpaca.jsonl", ChatTemplate(loaded), Policies(2048, "error")).samples
    sizes = [len(sample.input_ids) for sample in samples]
    return {
        "num_rows": count,
        "num_tokens": sum(sizes),
        "num_target_tokens": sum(sample.num_target_tokens for sample in samples),
        "longest": max(sizes),
        "sum_of_squares": sum(size * size for size in sizes),
    }


def lengths(count: int, draw: random.Random) -> list[int]:
    """Log-normal, with a mean of MEAN; none above LONGEST."""
    middle = math.log(MEAN) - DEVIATION**2 / 2
    return [min(LONGEST, max(24, int(draw.lognormvariate(middle, DEVIATION)))) for _ in range(count)]


def _line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def useful_operations(rows: dict[str, int], rank: int = 8) -> float:
    """Floating-point operations that one epoch of LoRA cannot do without.

    Of the frozen weights the product and the gradient of its input, of the adapter's also that of the
    weights; of attention the causal half of each sample's square; of the head what predicts a target.
    """
    hidden, wide, layers = SHAPE["hidden_size"], SHAPE["intermediate_size"], SHAPE["num_hidden_layers"]
    kv = hidden * SHAPE["num_key_value_heads"] // SHAPE["num_attention_heads"]
    pairs = [(hidden, hidden)] * 2 + [(hidden, kv)] * 2 + [(hidden, wide)] * 3
    frozen = layers * sum(left * right for left, right in pairs)
    adapter = layers * rank * sum(left + right for left, right in pairs)
    attention = (
        layers * hidden * 3 * 2 * rows["sum_of_squares"]
    )  # two products, three times, half of the square
    head = 4 * hidden * SHAPE["vocab_size"] * rows["num_target_tokens"]
    return rows["num_tokens"] * (4 * frozen + 6 * adapter) + attention + head
