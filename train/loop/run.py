"""One run, from recipe to manifest: what `train --adapter ...` does."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import GenerationConfig, set_seed

from train import device
from train.adapters import attach, oft
from train.config import RunConfig
from train.data.samples import Samples, load_samples
from train.data.template import ChatTemplate
from train.image import read_build_info
from train.loop import health
from train.loop.manifest import Manifest
from train.loop.metrics import MetricsFile, peak_memory_bytes
from train.loop.model import (
    KNOWN_TYPES,
    check_vocabulary,
    find_stop_tokens,
    hash_folder,
    load_model,
    load_tokenizer,
    quiet_libraries,
    read_model_config,
    share_files,
)
from train.loop.trainer import RunCallback, RunTrainer, training_arguments
from train.results.curve import draw_loss
from train.results.generate import answer, choose_records


@dataclass
class Prepared:
    """What a run is made of before its first step."""

    config: RunConfig
    choices: device.DeviceChoices
    template: ChatTemplate
    stop_token_ids: list[int]
    samples: Samples
    eval_samples: Samples | None
    model: PeftModel
    vocab_size: int
    hashes: Future[dict[str, Any]]


@dataclass
class Outcome:
    """What a run has made: the trained model in memory, and the figures that run.json holds."""

    model: PeftModel
    results: dict[str, Any]


def run(config: RunConfig) -> Outcome:
    """Fine-tune by a recipe. Leaves run.json, metrics.jsonl, adapter/ and loss.png in `config.output`.

    Raises UserError: 65 data, 69 device, 70 training went wrong, 78 configuration. run.json then says
    `failed` and why.
    """
    started = time.perf_counter()
    with contextlib.closing(Manifest.create(config)) as manifest, ThreadPoolExecutor(1) as hasher:
        prepared = prepare(config, manifest, hasher)
        outcome = fit(prepared, manifest)
        outcome.results["seconds"] = time.perf_counter() - started
        manifest.finish(outcome.results)
    return outcome


def prepare(config: RunConfig, manifest: Manifest, hasher: ThreadPoolExecutor) -> Prepared:
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
    eval_samples = (
        load_samples(config.eval_data, template, config.max_length, config.overlong)
        if config.eval_data
        else None
    )
    hashes = hasher.submit(hash_folder, config.model)
    say([line for part in (samples, eval_samples) if part for line in part.summary.lines()] + choices.lines())
    model = load_model(config.model, choices.dtype, choices.attn_implementation.value)
    vocab_size = model.get_output_embeddings().weight.shape[0]
    check_vocabulary([samples, eval_samples], stop_token_ids, vocab_size)
    targets = attach.find_targets(model, config)
    set_seed(config.seed)  # the adapter's first weights do not depend on what loading drew; drawn on the CPU
    adapted = attach.attach(model, config, targets)
    table = attach.target_table(adapted, targets)
    say(table_lines(table))
    adapted.to(choices.device.value)
    manifest.update(
        image=image.content if image else None,
        versions=device.versions(),
        device={name: vars(choice) for name, choice in vars(choices).items()}
        | {"threads": torch.get_num_threads()},
        model={
            "folder": str(config.model),
            "model_type": model_config["model_type"],
            "vocab_size": vocab_size,
        },
        data=[vars(part.summary) for part in (samples, eval_samples) if part],
        targets=[vars(row) for row in table],
    )
    return Prepared(
        config, choices, template, stop_token_ids, samples, eval_samples, adapted, vocab_size, hashes
    )


def fit(prepared: Prepared, manifest: Manifest) -> Outcome:
    """Train, with generations before and after, and write everything that a run leaves but the
    finished manifest.
    """
    config, model = prepared.config, prepared.model
    records = choose_records((prepared.eval_samples or prepared.samples).records, config.num_generations)
    generations = [
        {"prompt": record.messages[-2]["content"], "wanted": record.messages[-1]["content"]}
        for record in records
    ]
    for generation, record in zip(generations, records, strict=True):
        generation["before"] = _answer(prepared, record)
    parameters = attach.trainable(model)
    before = {name: parameter.detach().cpu().clone() for name, parameter in parameters.items()}
    with contextlib.closing(MetricsFile(config.output / "metrics.jsonl")) as metrics:
        results = _train(prepared, metrics, health.GradientCheck(parameters))
    health.require_moved(before, {name: parameter.detach().cpu() for name, parameter in parameters.items()})
    save_adapter(prepared, config.output / "adapter")
    if config.adapter == "oft":
        results["orthogonality_error"] = oft.orthogonality_error(model)
    for generation, record in zip(generations, records, strict=True):
        generation["after"] = _answer(prepared, record)
        answers = [f"  {when}: {generation[when]}" for when in ("before", "after", "wanted")]
        say([f"prompt: {generation['prompt']}", *answers])
    draw_loss(
        metrics.steps,
        config.output / "loss.png",
        f"{config.adapter}, {config.model.name}",
        math.log(prepared.vocab_size),
    )
    parts = [part.summary for part in (prepared.samples, prepared.eval_samples) if part]
    data = {part.path: part.sha256 for part in parts}
    manifest.update(inputs={"model": prepared.hashes.result(), "data": data})
    return Outcome(model, results | {"generations": generations})


def _train(prepared: Prepared, metrics: MetricsFile, gradients: health.GradientCheck) -> dict[str, Any]:
    config, choices = prepared.config, prepared.choices
    callback = RunCallback(metrics, gradients, choices)
    trainer = RunTrainer(
        model=prepared.model,
        arguments=training_arguments(config, choices, config.output),
        samples=prepared.samples.samples,
        eval_samples=prepared.eval_samples.samples if prepared.eval_samples else None,
        pad_token_id=prepared.stop_token_ids[0],
        callback=callback,
    )
    callback.trainer = trainer
    eval_before = trainer.evaluation_loss() if prepared.eval_samples else None
    trainer.train()
    losses = [step.loss for step in metrics.steps]
    first_loss = health.judge_first_loss(losses[0], prepared.vocab_size)
    say([first_loss, gradients.line()])
    return {
        "num_steps": trainer.state.global_step,
        "num_trainable_parameters": sum(parameter.numel() for parameter in gradients.parameters.values()),
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "mean_last_loss": sum(losses[-10:]) / len(losses[-10:]),
        "first_loss_verdict": first_loss,
        "gradients": gradients.line(),
        "eval_loss_before": eval_before,
        "eval_loss_after": trainer.evaluation_loss() if prepared.eval_samples else None,
        "train_seconds": metrics.steps[-1].seconds,
        "peak_memory_bytes": peak_memory_bytes(choices.device.value),
    }


def save_adapter(prepared: Prepared, folder: Path) -> None:
    """The adapter in PEFT's format, with the tokenizer, its chat template, and a generation config
    that stops.
    """
    prepared.model.save_pretrained(str(folder))
    tokenizer: Any = prepared.template.tokenizer
    tokenizer.save_pretrained(str(folder))
    GenerationConfig(
        eos_token_id=prepared.stop_token_ids,
        pad_token_id=tokenizer.pad_token_id
        if tokenizer.pad_token_id is not None
        else prepared.stop_token_ids[0],
    ).save_pretrained(str(folder))
    (folder / "README.md").unlink(missing_ok=True)  # PEFT's empty card: run.json says what is known
    share_files(folder)


def _answer(prepared: Prepared, record: Any) -> str:
    return answer(
        prepared.model, prepared.template, record, prepared.stop_token_ids, prepared.config.max_new_tokens
    )


def table_lines(table: list[attach.TargetRow]) -> list[str]:
    """The start-up table of what is trained."""
    lines = [f"{'layer':<12}{'inputs':>8}{'outputs':>9}{'layers':>8}{'trained':>12}"]
    lines += [
        f"{row.kind:<12}{row.in_features:>8}{row.out_features:>9}{row.num_layers:>8}{row.num_parameters:>12,}"
        for row in table
    ]
    total = sum(row.num_parameters for row in table)
    return [*lines, f"{'in all':<12}{'':>8}{'':>9}{sum(row.num_layers for row in table):>8}{total:>12,}"]


def say(lines: list[str] | Iterator[str]) -> None:
    """Print lines at once, so that a log shows where a run is."""
    print("\n".join(lines), flush=True)
