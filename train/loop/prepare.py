"""What a run is made of: data and model read, the adapter attached, every choice said."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from transformers import set_seed

from train import device, families, hub
from train.adapters import attach
from train.adapters.initial import initial_adapter
from train.adapters.reach import left_out
from train.config import RunConfig
from train.data.lengths import beyond_positions
from train.data.mixture import Mixture, load_all, mix
from train.data.packing import check_lengths
from train.data.samples import Policies, Samples, load_samples
from train.data.template import ChatTemplate
from train.image import read_build_info
from train.loop import processes, resume
from train.loop.checkpoint import Checkpoint
from train.loop.heartbeat import HEARTBEAT
from train.loop.lines import say, table_lines
from train.loop.manifest import Manifest
from train.loop.model import (
    check_vocabulary,
    find_stop_tokens,
    hash_in_background,
    load_model,
    load_tokenizer,
    quiet_libraries,
    read_model_config,
)
from train.loop.sharding import shard
from train.loop.stop_token import check_stop_token


@dataclass
class Prepared:
    """What a run is made of before its first step.

    parts: the training sources, then the evaluation sets, each as loaded. samples: the sources mixed by their
    weights. start: the checkpoint from which it goes on. facts: what a later resume compares.
    """

    config: RunConfig
    choices: device.DeviceChoices
    template: ChatTemplate
    stop_token_ids: list[int]
    parts: list[Samples]
    samples: Mixture
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
    say(families.notes(model_config))
    rotates = config.adapter == "oft" and config.oft.cayley == "exact"
    choices = processes.first_of_node_first(lambda: device.choose(config, image, rotates=rotates))
    processes.require_same(choices.values())
    set_seed(config.seed)
    tokenizer = load_tokenizer(config.model)
    template = ChatTemplate(tokenizer, config.thinking, config.train_on, config.chat_template)
    stop_token_ids = find_stop_tokens(template, config.model)
    parts, samples, eval_samples = processes.first_of_node_first(lambda: _load(config, template))
    check_lengths(parts, config.per_device_tokens)
    inputs = resume.identify(config, parts)
    resume.require_same_inputs(start, inputs, config)
    facts = {"versions": device.versions(), "device": choices.values()}
    hashes = hash_in_background(config.model) if processes.is_first() else Future()
    say([line for part in parts for line in part.summary.lines()] + samples.notes + choices.lines())
    say(beyond_positions(parts, families.of_text(model_config)))
    say(resume.change_lines(start, facts))
    HEARTBEAT.beat("loading the model")
    model = load_model(config.model, choices.dtype, choices.attn_implementation.value)
    vocab_size = model.get_output_embeddings().weight.shape[0]
    check_vocabulary([*parts], stop_token_ids, vocab_size)
    say(check_stop_token(model, template, config.untrained_stop_token, f"--model {config.model}"))
    set_seed(config.seed)  # the adapter's first weights do not depend on what loading drew
    is_whole = config.fsdp == "off"
    adapted, targets = initial_adapter(model, config, choices.device.value if is_whole else "cpu")
    table = attach.target_table(adapted, targets)
    say(table_lines(table) + (left_out(adapted) if config.target_modules == "auto" else []))
    say([] if is_whole else shard(adapted, choices.device.value))
    manifest.update(
        image=image.content if image else None,
        versions=facts["versions"],
        device=choices.as_dict() | {"threads": torch.get_num_threads()},
        model={
            "folder": str(config.model),
            "model_type": model_config["model_type"],
            "vocab_size": vocab_size,
        }
        | hub.facts(config),
        data=[vars(part.summary) for part in parts],
        targets=[vars(row) for row in table],
    )
    return Prepared(
        config,
        choices,
        template,
        stop_token_ids,
        parts,
        samples,
        eval_samples,
        adapted,
        vocab_size,
        hashes,
        start,
        facts | {"inputs": inputs, "num_processes": processes.size()},
    )


def _load(config: RunConfig, template: ChatTemplate) -> tuple[list[Samples], Mixture, dict[str, Samples]]:
    """All parts, the training sources mixed, and the evaluation sets by name; faults of all parts at once."""
    sets = config.eval_sets()
    paths = [*(source.path for source in config.data), *sets.values()]
    policies = Policies(config.max_length, config.overlong, config.bad_rows, config.max_bad_rows)
    parts = load_all(paths, lambda path: load_samples(path, template, policies, config.sample_cache))
    sources, rest = parts[: len(config.data)], parts[len(config.data) :]
    return parts, mix(config.data, sources, config.seed), dict(zip(sets, rest, strict=True))
