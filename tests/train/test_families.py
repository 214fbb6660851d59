"""The families that `train` takes: Qwen2 and Qwen2.5 (one model type), Qwen3; tied or not; and one of
real shape.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from train.config import RunConfig
from train.loop.run import run

Command = Callable[..., "subprocess.CompletedProcess[str]"]
QWEN3 = "ISOTUNE_TEST_QWEN3"


def write_checkpoint(tokenizer: Path, folder: Path, model_class: str, **fields: Any) -> Path:
    """A random checkpoint of a transformers class, with the tokenizer files of another folder."""
    import transformers

    config = getattr(transformers, model_class.replace("ForCausalLM", "Config"))(**fields)
    torch.manual_seed(0)
    getattr(transformers, model_class)(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (tokenizer / name).exists():
            shutil.copy(tokenizer / name, folder / name)
    return folder


SMALL = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 2,
}


@pytest.mark.parametrize("adapter", ["lora", "oft"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("model_class", ["Qwen2ForCausalLM", "Qwen3ForCausalLM"])
def test_a_family_trains_every_tensor_from_ln_v_on(
    tiny: Path, recipe: dict[str, Any], tmp_path: Path, model_class: str, tied: bool, adapter: str
) -> None:
    more = {"head_dim": 16} if "Qwen3" in model_class else {}
    model = write_checkpoint(tiny, tmp_path / "model", model_class, tie_word_embeddings=tied, **SMALL, **more)
    config = RunConfig.model_validate(
        {**recipe, "model": model, "adapter": adapter, "oft": {"oft_block_size": 16}}
    )
    results = run(config).results
    assert abs(results["first_loss"] / math.log(512) - 1) <= 0.05
    assert results["last_loss"] < results["first_loss"]
    trained, _, total = results["gradients"].split()[:3]
    assert trained == total


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ["lora", "oft"])
def test_a_checkpoint_of_real_shape_with_the_real_qwen3_tokenizer_trains(
    train_command: Command, tmp_path: Path, adapter: str
) -> None:
    tokenizer = os.environ.get(QWEN3, "")
    if not tokenizer:
        pytest.skip(f"no real Qwen3 tokenizer: {QWEN3} names its folder (test.sh sets it)")
    from train.checks.tiny import samples_file

    model = write_checkpoint(
        Path(tokenizer), tmp_path / "model", "Qwen2ForCausalLM", vocab_size=151_936, hidden_size=896,
        intermediate_size=4864, num_hidden_layers=2, num_attention_heads=14, num_key_value_heads=2,
        tie_word_embeddings=True, eos_token_id=151_645,
    )  # fmt: skip
    done = train_command(
        "--adapter", adapter, "--model", model, "--data", samples_file(), "--output", tmp_path / "out",
        "--set", "max_steps=5", "--set", "per_device_train_batch_size=2", "--set", "num_generations=1",
        "--set", "max_new_tokens=4",
        OMP_NUM_THREADS="2",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "out" / "run.json").read_text(encoding="utf-8"))["results"]
    assert results["num_steps"] == 5
    assert abs(results["first_loss"] / math.log(151_936) - 1) <= 0.05
    assert "ln V = 11.931: an untrained model starts here" in done.stdout
    lines = (tmp_path / "out" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    assert all(math.isfinite(line["loss"]) for line in found if "finding" not in line)
    assert [line["finding"]["name"] for line in found if "finding" in line] == ["first_loss_at_uniform"]
