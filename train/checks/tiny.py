"""A deterministic tiny Qwen2 with a byte-level BPE tokenizer, made in place: for demos, verify and tests."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train.errors import EXIT_CONFIG, MAKE_ROOM, UserError, is_disk_full, place_of, reading
from train.loop.model import quiet_libraries, share_files

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
NUM_TOKENS = 280
"""The tokenizer's size: bytes, special tokens and a few merges. The model has more rows, as Qwen's do."""

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

CONFIG: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def samples_file() -> Path:
    """The instruction rows that ship with isotune: school physics, Chinese and English."""
    return Path(__file__).parent.parent / "samples" / "physics.jsonl"


def pretrained_folder() -> Path:
    """The small Qwen2 that ships: it knows simple English facts (`train.samples`)."""
    return Path(__file__).parent.parent / "samples" / "pretrained"


def make_tiny(folder: Path, seed: int = 0) -> None:
    """Write a tiny random text checkpoint into a new or empty folder. The same seed gives the same bytes.

    UserError (exit 78) where the folder holds something already.
    """

    def write(into: Path) -> None:
        write_tokenizer(into)
        quiet_libraries()
        tiny_model(seed).save_pretrained(into)
        share_files(into)

    _fill_folder(folder, write)


def copy_pretrained(folder: Path) -> None:
    """Copy the pretrained checkpoint that ships into a new or empty folder; UserError as for `make_tiny`."""

    def copy(into: Path) -> None:
        for path in sorted(pretrained_folder().iterdir()):
            shutil.copyfile(path, into / path.name)

    _fill_folder(folder, copy)


def _fill_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    with reading(f"--output {place_of(folder)}", "name another folder"):
        is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not is_free:
        raise UserError(f"--output {folder}: is not empty", "name a new folder", EXIT_CONFIG)
    was_there = folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fill(folder)
    except BaseException as fault:  # half a model is none, and it would bar the same command's next try
        _empty(folder, was_there)
        if is_disk_full(fault):  # safetensors and tokenizers have kinds of their own for it
            reason, hint = "the disk is full: nothing was kept", MAKE_ROOM
        elif isinstance(fault, OSError):
            reason, hint = f"cannot be written: {fault.strerror}", "name a folder you may write"
        else:
            raise
        raise UserError(f"--output {folder}: {reason}", hint, EXIT_CONFIG) from None


def _empty(folder: Path, is_kept: bool) -> None:
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            path.unlink()
        if not is_kept:
            folder.rmdir()


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE trained on the sample rows."""
    from tokenizers import pre_tokenizers

    rows = [json.loads(line) for line in samples_file().read_text(encoding="utf-8").splitlines()]
    texts = [f"{row['instruction']}\n{row['output']}" for row in rows]
    split = pre_tokenizers.ByteLevel(add_prefix_space=False)
    write_tokenizer_files(folder, train_tokenizer(texts, NUM_TOKENS, split))


def train_tokenizer(texts: Iterable[str], num_tokens: int, split: Any) -> Any:
    """A BPE of `num_tokens` tokens, Qwen's special ones first. `split`: the pre-tokenizer, down to bytes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = split
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=num_tokens,
        special_tokens=[AddedToken(token, special=True) for token in SPECIAL_TOKENS],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def write_tokenizer_files(folder: Path, tokenizer: Any) -> None:
    """The files of a tokenizer with ChatML: eos `<|im_end|>`, pad `<|endoftext|>`."""
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": CONFIG["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    (folder / "chat_template.jinja").write_text(CHATML, encoding="utf-8")


def tiny_model(seed: int) -> PreTrainedModel:
    """A random Qwen2 whose layers are strong enough to be steered, under a head weak enough to start
    at ln V.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    model = Qwen2ForCausalLM(Qwen2Config(**CONFIG))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            _fill(name, parameter, generator)
    return model


def _fill(name: str, parameter: torch.Tensor, generator: torch.Generator) -> None:
    if parameter.dim() < 2:
        parameter.fill_(1.0 if "norm" in name else 0.0)
    elif "lm_head" in name or "embed_tokens" in name:
        # Logits of deviation d = 0.035 sqrt(hidden) = 0.56 raise the first loss to about ln V + d^2 / 2.
        parameter.normal_(std=0.035, generator=generator)
    else:
        parameter.normal_(std=1 / math.sqrt(parameter.shape[1]), generator=generator)
