"""What a run is made of: data and model read, the adapter attached, every choice said."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from transformers import set_seed

from train import device
from train.adapters import attach
from train.adapters.initial import initial_adapter
from train.config import RunConfig
from train.data.samples import Samples, load_samples
from train.data.template import ChatTemplate
from train.image import read_build_info
from train.loop import resume
from train.loop.checkpoint import Checkpoint
from train.loop.lines import say, table_lines
from train.loop.manifest import Manifest
from train.loop.model import (
    KNOWN_TYPES,
    check_vocabulary,
    find_stop_tokens,
    hash_in_background,
    load_model,
    load_tokenizer,
    quiet_libraries,
    read_model_config,
)


@dataclass
class Prepared:
    """What a run is made of before its first step.

    start: the checkpoint from which it goes on. facts: what a later resume compares.
    """

    config: RunConfig
    choices: device.DeviceChoices
    template: ChatTemplate
    stop_token_ids: list[int]
    samples: Samples
    eval_samples: dict[str, Samples]
    model: PeftModel
    vocab_size: int
    hashes: Future[dict[str, str]]
    start: Checkpoint | None
    facts: dict[str, Any]


def prepare(config: RunConfig, manifest: Manifest, start: Checkpoint | None) -> Prepared:
    """Read data and model, attach the adapter, and say what was found.

    Data first: being wrong there is cheap.
    """
    quiet_libraries()
    image = read_build_info()
    model_config = read_model_config(config.model)
    if model_config["model_type"] not in KNOWN_TYPES:
        known = ", ".join(KNOWN_TYPES)
        say([f"note: model type {model_config['model_type']} is not one that isotune tests: {known}"])
    choices = device.choose(config, image)
    set_seed(config.seed)
    tokenizer = load_tokenizer(config.model)
    template = ChatTemplate(tokenizer, config.thinking)
    stop_token_ids = find_stop_tokens(template, config.model)
    samples = load_samples(config.data, template, config.max_length, config.overlong)
    eval_samples = {
        name: load_samples(path, template, config.max_length, config.overlong)
        for name, path in config.eval_sets().items()
    }
    parts = [samples, *eval_samples.values()]
    inputs = resume.identify(config, parts)
    resume.require_same_inputs(start, inputs, config)
    facts = {"versions": device.versions(), "device": choices.values()}
    hashes = hash_in_background(config.model)
    say([line for part in parts for line in part.summary.lines()] + choices.lines())
    say(resume.change_lines(start, facts))
    model = load_model(config.model, choices.dtype, choices.attn_implementation.value)
    vocab_size = model.get_output_embeddings().weight.shape[0]
    check_vocabulary([*parts], stop_token_ids, vocab_size)
    set_seed(config.seed)  # the adapter's first weights do not depend on what loading drew
    adapted, targets = initial_adapter(model, config, choices.device.value)
    table = attach.target_table(adapted, targets)
    say(table_lines(table))
    manifest.update(
        image=image.content if image else None,
        versions=facts["versions"],
        device={name: vars(choice) for name, choice in vars(choices).items()}
        | {"threads": torch.get_num_threads()},
        model={
            "folder": str(config.model),
            "model_type": model_config["model_type"],
            "vocab_size": vocab_size,
        },
        data=[vars(part.summary) for part in parts],
        targets=[vars(row) for row in table],
    )
    return Prepared(
        config,
        choices,
        template,
        stop_token_ids,
        samples,
        eval_samples,
        adapted,
        vocab_size,
        hashes,
        start,
        facts | {"inputs": inputs},
    )
