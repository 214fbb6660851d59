"""One run, from recipe to manifest: what `train --adapter ...` does."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers import GenerationConfig

from train import device_faults, hub
from train.adapters import attach, oft
from train.adapters.drift import DriftWatch
from train.adapters.fingerprint import make_probe, take
from train.adapters.manifest import write_manifest
from train.adapters.saved import read_adapter_config
from train.config import RunConfig
from train.data.formats import Record
from train.data.sample import Sample
from train.errors import UserError
from train.families import may_lack_gradient
from train.loop import health, processes, resume
from train.loop.arguments import begin_loss_scale, training_arguments
from train.loop.callback import RunCallback
from train.loop.evaluation import Evaluator
from train.loop.findings import Findings
from train.loop.heartbeat import HEARTBEAT, PLACES
from train.loop.lines import say
from train.loop.manifest import Manifest
from train.loop.metrics import MetricsFile, peak_memory_bytes
from train.loop.model import (
    share_files,
)
from train.loop.prepare import Prepared, prepare
from train.loop.progress import Progress
from train.loop.saver import Saver, seconds_before
from train.loop.schedule import PlanCallback
from train.loop.sharding import require_shardable
from train.loop.telemetry import watched
from train.loop.tensorboard import EventFile
from train.loop.trainer import RunTrainer
from train.loop.watch import HealthWatch
from train.loop.watchdog import Watchdog
from train.results.curve import draw_loss
from train.results.generate import answer, choose_records
from train.stop import put_off


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
    processes.begin(config)
    require_shardable(config)
    config = processes.first_of_node_first(lambda: hub.resolved(config))
    with (
        resume.begun(config) as (manifest, start),
        device_faults.told(config.output),
        HEARTBEAT.running(PLACES if processes.is_first() else ()) as lines,
    ):
        say(lines)
        started -= seconds_before(start)[0]
        prepared = prepare(config, manifest, start)
        processes.gather(None)  # one may load far longer than another; a device's own groups wait two minutes
        outcome = fit(prepared, manifest, started)
        outcome.results["seconds"] = time.perf_counter() - started
        manifest.finish(outcome.results)
    processes.end()
    return outcome


def fit(prepared: Prepared, manifest: Manifest, run_started: float) -> Outcome:
    """Train, with generations before and after, and write everything that a run leaves but the
    finished manifest.

    run_started: `time.perf_counter()` at the run's start, the seconds of earlier processes counted in.
    """
    config, model, start = prepared.config, prepared.model, prepared.start
    held_out = next(iter(prepared.eval_samples.values()), None)
    records = choose_records((held_out or prepared.samples).records, config.num_generations)
    answers = start.content["before"]["answers"] if start else _answers(prepared, records)
    generations = [
        {"prompt": record.messages[-2]["content"], "wanted": record.messages[-1]["content"], "before": before}
        for record, before in zip(records, answers, strict=True)
    ]
    parameters = attach.trainable(model)
    first = {name: parameter.detach().cpu().clone() for name, parameter in parameters.items()}
    if start:
        resume.restore_adapter(model, start)
    last_step, num_lines = (start.step, start.content["num_metrics"]) if start else (0, 0)
    is_first = processes.is_first()
    lines = MetricsFile(config.output / "metrics.jsonl", last_step, num_lines, is_first)
    with contextlib.closing(lines) as metrics:
        if config.tensorboard and is_first:
            metrics.mirror = EventFile(config.output / "tensorboard", metrics.lines).add
        gradients = health.GradientCheck(parameters, _block_dropout(config))
        saver = Saver(config, prepared.facts, {"answers": answers}, metrics, gradients, run_started)
        watch = _watch(prepared, metrics, manifest)
        try:
            results = _train(prepared, saver, watch, manifest)
        finally:
            with contextlib.suppress(OSError, UserError):  # a full disk: the fault that is already on its way
                watch.findings.publish()
    results["findings"] = watch.findings.as_list()
    health.require_moved(first, {name: parameter.detach().cpu() for name, parameter in parameters.items()})
    if config.adapter == "oft":
        results["orthogonality_error"] = oft.orthogonality_error(model)
        results["cayley"] = "exact" if oft.is_exact(model) else "series"
        say(DriftWatch(model, config.oft.on_drift).after_training(results["orthogonality_error"]))
    if is_first:
        save_adapter(prepared, config.output / "adapter")
    elif config.fsdp != "off":  # the fingerprint's forwards gather this rank's weights too
        take(model, make_probe(prepared.vocab_size))
    answers = _answers(prepared, records)
    if not is_first:
        return Outcome(model, results)
    for generation, after in zip(generations, answers, strict=True):
        generation["after"] = after
        shown = [f"  {when}: {generation[when]}" for when in ("before", "after", "wanted")]
        say([f"prompt: {generation['prompt']}", *shown])
    draw_loss(
        metrics.steps,
        config.output / "loss.png",
        f"{config.adapter}, {hub.name_of(config.model)}",
        math.log(prepared.vocab_size),
        metrics.evaluations,
    )
    parts = [part.summary for part in prepared.parts]
    data = {part.path: part.sha256 for part in parts}
    manifest.update(inputs={"model": prepared.hashes.result(), "data": data})
    return Outcome(model, results | {"generations": generations})


def _watch(prepared: Prepared, metrics: MetricsFile, manifest: Manifest) -> HealthWatch:
    """The run's health, with what was found before the checkpoint from which it goes on."""
    start = prepared.start
    kept = start.content.get("health", {}) if start else {}
    tell = partial(_tell_findings, manifest)
    findings = Findings(metrics, tell, kept.get("findings"))
    watch = HealthWatch(prepared.config, prepared.vocab_size, findings, kept)
    if start is None:
        # Rows that a weight repeats are no duplicates: each source as it was loaded.
        sources = prepared.parts[: len(prepared.config.data)]
        rows = [sample for part in sources for sample in part.samples]
        watch.before_training(rows, _held_out(prepared))
    return watch


def _held_out(prepared: Prepared) -> list[Sample]:
    return [sample for part in prepared.eval_samples.values() for sample in part.samples]


def _tell_findings(manifest: Manifest, findings: list[dict[str, Any]]) -> None:
    manifest.update(results={"findings": findings})


def _tell_hang(manifest: Manifest, reason: str) -> None:
    manifest.update(status="failed", reason=reason)


def _train(prepared: Prepared, saver: Saver, watch: HealthWatch, manifest: Manifest) -> dict[str, Any]:
    config, choices, start = prepared.config, prepared.choices, prepared.start
    metrics, gradients = saver.metrics, saver.gradients
    evaluator = Evaluator(config, metrics, start)
    drift = DriftWatch(prepared.model, config.oft.on_drift)
    progress = Progress()
    watchdog = Watchdog(
        config.step_timeout_seconds, config.output, processes.rank(), partial(_tell_hang, manifest)
    )
    trainer = RunTrainer(
        model=prepared.model,
        arguments=training_arguments(
            config, choices, config.output, any(map(may_lack_gradient, gradients.parameters))
        ),
        samples=prepared.samples.samples,
        eval_samples={name: part.samples for name, part in prepared.eval_samples.items()},
        pad_token_id=prepared.stop_token_ids[0],
        callback=RunCallback(metrics, gradients, choices, drift, watch, evaluator, progress, watchdog),
        saver=saver,
        start=start,
    )
    begin_loss_scale(trainer.accelerator, choices)
    trainer.add_callback(PlanCallback(config, manifest))
    telemetry = watched(manifest.content["image"], trainer, watch.findings)
    trainer.add_callback(telemetry)
    say(trainer.batch_lines())
    manifest.update(device=manifest.content["device"] | {"packing": vars(trainer.packing)})
    if start:
        saver.before["eval_losses"] = start.content["before"]["eval_losses"]
    else:
        saver.before["eval_losses"] = evaluator.losses(trainer)
        for name, loss in saver.before["eval_losses"].items():
            watch.evaluated(0, name, loss)
    evaluator.catch_up(trainer, start)
    with telemetry, progress, put_off(), watchdog:
        trainer.train_to_the_end()
    say(evaluator.restore_best(prepared.model, metrics.steps[-1].step))
    losses = [step.loss for step in metrics.steps]
    first_loss = health.judge_first_loss(losses[0], prepared.vocab_size)
    say([gradients.line()])
    peaks = [*(step.peak_memory_bytes for step in metrics.steps), peak_memory_bytes(choices.device.value)]
    return {
        "num_steps": metrics.steps[-1].step,
        "num_trainable_parameters": sum(parameter.numel() for parameter in gradients.parameters.values()),
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "mean_last_loss": sum(losses[-10:]) / len(losses[-10:]),
        "first_loss_verdict": first_loss,
        "gradients": gradients.line(),
        **evaluator.results(saver.before["eval_losses"], trainer),
        "train_seconds": metrics.steps[-1].seconds,
        "peak_memory_bytes": max(peaks),
        "auto_batch": trainer.memory.changes,
        **telemetry.results(),
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
        read_adapter_config(folder),
        prepared.model,
        prepared.config.model,
        prepared.hashes.result(),
        prepared.config.thinking,
    )
    share_files(folder)


def _block_dropout(config: RunConfig) -> float:
    """The share of an adapter tensor's blocks that a forward leaves out."""
    return config.oft.module_dropout if config.adapter == "oft" else 0.0


def _answers(prepared: Prepared, records: Sequence[Record]) -> list[str]:
    """The model's answers, of rank 0 for all; by all ranks together where each has a part of the weights."""

    def one(record: Record) -> str:
        HEARTBEAT.beat("generating")
        stops, limit = prepared.stop_token_ids, prepared.config.max_new_tokens
        return answer(prepared.model, prepared.template, record, stops, limit)

    def work() -> list[str]:
        return [one(record) for record in records]

    return processes.on_first(work) if prepared.config.fsdp == "off" else work()
