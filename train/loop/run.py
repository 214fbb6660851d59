"""One run, from recipe to manifest: what `train --adapter ...` does."""

from __future__ import annotations

import contextlib
import math
import time
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import GenerationConfig, set_seed

from train import device
from train.adapters import attach, oft
from train.adapters.drift import DriftWatch
from train.adapters.initial import initial_adapter
from train.adapters.manifest import write_manifest
from train.adapters.saved import read_adapter_config
from train.config import RunConfig
from train.data.samples import Samples, load_samples
from train.data.template import ChatTemplate
from train.image import read_build_info
from train.loop import health, resume
from train.loop.checkpoint import Checkpoint
from train.loop.lines import say, table_lines
from train.loop.manifest import Manifest
from train.loop.metrics import MetricsFile, peak_memory_bytes
from train.loop.model import (
    KNOWN_TYPES,
    check_vocabulary,
    find_stop_tokens,
    hash_in_background,
    load_model,
    load_tokenizer,
    quiet_libraries,
    read_model_config,
    share_files,
)
from train.loop.saver import Saver, seconds_before
from train.loop.trainer import RunCallback, RunTrainer, training_arguments
from train.results.curve import draw_loss
from train.results.generate import answer, choose_records
from train.stop import put_off


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
    eval_samples: Samples | None
    model: PeftModel
    vocab_size: int
    hashes: Future[dict[str, str]]
    start: Checkpoint | None
    facts: dict[str, Any]


@dataclass
class Outcome:
    """What a run has made: the trained model in memory, and the figures that run.json holds."""

    model: PeftModel
    results: dict[str, Any]


def run(config: RunConfig) -> Outcome:
    """Fine-tune by a recipe, or go on with an unfinished run. Leaves run.json, metrics.jsonl, checkpoints/,
    adapter/ and loss.png in `config.output`.

    Raises UserError: 65 data, 69 device, 70 training went wrong, 78 configuration. run.json then says
    `failed` and why. Raises Stopped on a signal.
    """
    started = time.perf_counter()
    with resume.begun(config) as (manifest, start):
        started -= seconds_before(start)[0]
        prepared = prepare(config, manifest, start)
        outcome = fit(prepared, manifest, started)
        outcome.results["seconds"] = time.perf_counter() - started
        manifest.finish(outcome.results)
    return outcome


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
    eval_samples = (
        load_samples(config.eval_data, template, config.max_length, config.overlong)
        if config.eval_data
        else None
    )
    inputs = resume.identify(config, [samples, eval_samples])
    resume.require_same_inputs(start, inputs, config)
    facts = {"versions": device.versions(), "device": choices.values()}
    hashes = hash_in_background(config.model)
    say([line for part in (samples, eval_samples) if part for line in part.summary.lines()] + choices.lines())
    say(resume.change_lines(start, facts))
    model = load_model(config.model, choices.dtype, choices.attn_implementation.value)
    vocab_size = model.get_output_embeddings().weight.shape[0]
    check_vocabulary([samples, eval_samples], stop_token_ids, vocab_size)
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
        data=[vars(part.summary) for part in (samples, eval_samples) if part],
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


def fit(prepared: Prepared, manifest: Manifest, run_started: float) -> Outcome:
    """Train, with generations before and after, and write everything that a run leaves but the
    finished manifest.

    run_started: `time.perf_counter()` at the run's start, the seconds of earlier processes counted in.
    """
    config, model, start = prepared.config, prepared.model, prepared.start
    records = choose_records((prepared.eval_samples or prepared.samples).records, config.num_generations)
    answers = start.content["before"]["answers"] if start else [_answer(prepared, one) for one in records]
    generations = [
        {"prompt": record.messages[-2]["content"], "wanted": record.messages[-1]["content"], "before": before}
        for record, before in zip(records, answers, strict=True)
    ]
    parameters = attach.trainable(model)
    first = {name: parameter.detach().cpu().clone() for name, parameter in parameters.items()}
    if start:
        resume.restore_adapter(model, start)
    kept = (start.step, start.content["num_metrics"]) if start else (0, 0)
    with contextlib.closing(MetricsFile(config.output / "metrics.jsonl", *kept)) as metrics:
        gradients = health.GradientCheck(parameters)
        saver = Saver(config, prepared.facts, {"answers": answers}, metrics, gradients, run_started)
        results = _train(prepared, saver)
    health.require_moved(first, {name: parameter.detach().cpu() for name, parameter in parameters.items()})
    if config.adapter == "oft":
        results["orthogonality_error"] = oft.orthogonality_error(model)
        results["cayley"] = "exact" if oft.is_exact(model) else "series"
        say(DriftWatch(model, config.oft.on_drift).after_training(results["orthogonality_error"]))
    save_adapter(prepared, config.output / "adapter")
    for generation, record in zip(generations, records, strict=True):
        generation["after"] = _answer(prepared, record)
        shown = [f"  {when}: {generation[when]}" for when in ("before", "after", "wanted")]
        say([f"prompt: {generation['prompt']}", *shown])
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


def _train(prepared: Prepared, saver: Saver) -> dict[str, Any]:
    config, choices, start = prepared.config, prepared.choices, prepared.start
    metrics, gradients = saver.metrics, saver.gradients
    trainer = RunTrainer(
        model=prepared.model,
        arguments=training_arguments(config, choices, config.output),
        samples=prepared.samples.samples,
        eval_samples=prepared.eval_samples.samples if prepared.eval_samples else None,
        pad_token_id=prepared.stop_token_ids[0],
        callback=RunCallback(metrics, gradients, choices, DriftWatch(prepared.model, config.oft.on_drift)),
        saver=saver,
        start=start,
    )
    if start:
        saver.before["eval_loss"] = start.content["before"]["eval_loss"]
    else:
        saver.before["eval_loss"] = trainer.evaluation_loss() if prepared.eval_samples else None
    with put_off():
        trainer.train_to_the_end()
    losses = [step.loss for step in metrics.steps]
    first_loss = health.judge_first_loss(losses[0], prepared.vocab_size)
    say([first_loss, gradients.line()])
    peaks = [*(step.peak_memory_bytes for step in metrics.steps), peak_memory_bytes(choices.device.value)]
    return {
        "num_steps": metrics.steps[-1].step,
        "num_trainable_parameters": sum(parameter.numel() for parameter in gradients.parameters.values()),
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "mean_last_loss": sum(losses[-10:]) / len(losses[-10:]),
        "first_loss_verdict": first_loss,
        "gradients": gradients.line(),
        "eval_loss_before": saver.before["eval_loss"],
        "eval_loss_after": trainer.evaluation_loss() if prepared.eval_samples else None,
        "train_seconds": metrics.steps[-1].seconds,
        "peak_memory_bytes": max(peaks),
    }


def save_adapter(prepared: Prepared, folder: Path) -> None:
    """The adapter in PEFT's format, with its manifest, the tokenizer, its chat template, and a generation
    config that stops.
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
    write_manifest(
        read_adapter_config(folder), prepared.model, prepared.config.model, prepared.hashes.result()
    )
    share_files(folder)


def _answer(prepared: Prepared, record: Any) -> str:
    return answer(
        prepared.model, prepared.template, record, prepared.stop_token_ids, prepared.config.max_new_tokens
    )
