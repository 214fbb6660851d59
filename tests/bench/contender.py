"""One contender of throughput.py, in a process and an environment of its own: prints one JSON object.

`contender.py NAME FOLDER THREADS LIMIT`: training that takes longer than LIMIT seconds is stopped there.

Needs no more than the contender itself: this file runs where isotune is not installed.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STARTED = float(os.environ.get("BENCH_STARTED", time.time()))
BATCH = 8
"""Samples of one forward: what the peers take where nobody says otherwise."""


def peak_memory_bytes() -> int:
    """Most bytes that this program held; getrusage counts the one that started it too."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in line)
    return int(line.split()[1]) * 1024


class Clock:
    """Seconds of training, by the wall and of this process; from the command to the end of the first step."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.begun = self.ended = (0.0, 0.0)
        self.first = 0.0

    def figures(self) -> dict[str, float]:
        """Seconds and bytes of this process."""
        peak = peak_memory_bytes()
        wall, cpu = (end - begin for begin, end in zip(self.begun, self.ended, strict=True))
        return {"wall": wall, "cpu": cpu, "first_step": self.first, "peak_memory_bytes": peak}

    def give_up(self) -> None:
        """Say what was reached, and end: nothing that a library does at its end counts."""
        self.ended = time.perf_counter(), time.process_time()
        print(json.dumps(self.figures() | {"stopped": 1}), file=sys.__stdout__, flush=True)
        os._exit(0)

    def callback(self) -> Any:
        from transformers import TrainerCallback

        clock = self

        class Callback(TrainerCallback):
            def on_train_begin(self, *_: Any, **__: Any) -> None:
                clock.begun = time.perf_counter(), time.process_time()
                threading.Timer(clock.limit, clock.give_up).start()

            def on_step_end(self, *_: Any, **__: Any) -> None:
                clock.first = clock.first or time.time() - STARTED
                clock.ended = time.perf_counter(), time.process_time()

        return Callback()


def isotune(place: Path, clock: Clock, **more: Any) -> None:
    from train.config import RunConfig
    from train.loop import trainer
    from train.loop.run import run

    original = trainer.RunTrainer.__init__

    def with_clock(self: Any, *rest: Any, **named: Any) -> None:
        original(self, *rest, **named)
        self.add_callback(clock.callback())

    trainer.RunTrainer.__init__ = with_clock  # type: ignore[method-assign]
    fields = {
        "adapter": "lora",
        "model": place / "model",
        "data": place / "alpaca.jsonl",
        "output": place / f"out-{os.getpid()}",
        "num_train_epochs": 1,
        "per_device_train_batch_size": BATCH,
        "num_generations": 0,
        "device": "cpu",
        "lora": {"r": 8, "lora_dropout": 0.0},
    }
    run(RunConfig.model_validate(fields | more))


def naive(place: Path, clock: Clock, **more: Any) -> None:
    """What one writes in an hour: padded batches, PEFT's layers, the model's own loss over all logits."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments

    tokenizer = AutoTokenizer.from_pretrained(place / "model")
    model = AutoModelForCausalLM.from_pretrained(place / "model", dtype=torch.float32)
    model = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    rows = []
    for line in (place / "messages.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        options = {"tokenize": True, "return_dict": False}
        prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, **options)
        whole = tokenizer.apply_chat_template(row["prompt"] + row["completion"], **options)
        rows.append({"input_ids": whole, "labels": [-100] * len(prompt) + whole[len(prompt) :]})

    def collate(samples: list[Any]) -> dict[str, Any]:
        def padded(name: str, filler: int) -> Any:
            parts = [torch.tensor(sample[name]) for sample in samples]
            return torch.nn.utils.rnn.pad_sequence(parts, batch_first=True, padding_value=filler)

        lengths = torch.tensor([len(sample["input_ids"]) for sample in samples])
        mask = (torch.arange(int(lengths.max()))[None] < lengths[:, None]).long()
        return {"input_ids": padded("input_ids", 0), "labels": padded("labels", -100), "attention_mask": mask}

    arguments = TrainingArguments(
        output_dir=str(place / "naive"),
        num_train_epochs=1,
        per_device_train_batch_size=BATCH,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        remove_unused_columns=False,
        label_names=["labels"],
        **more,
    )
    callbacks = [clock.callback()]
    Trainer(model, arguments, train_dataset=rows, data_collator=collate, callbacks=callbacks).train()


def trl(place: Path, clock: Clock, **more: Any) -> None:
    from datasets import load_dataset
    from peft import LoraConfig
    from trl import SFTConfig, SFTTrainer

    rows = load_dataset("json", data_files=str(place / "messages.jsonl"), split="train")
    arguments = SFTConfig(
        output_dir=str(place / f"trl-{os.getpid()}"),
        num_train_epochs=1,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        **more,
    )
    SFTTrainer(
        str(place / "model"),
        arguments,
        train_dataset=rows,
        peft_config=LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM"),
        callbacks=[clock.callback()],
    ).train()


def llamafactory(place: Path, clock: Clock, **more: Any) -> None:
    from llamafactory.train.tuner import run_exp

    fields = {
        "model_name_or_path": str(place / "model"),
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "lora",
        "lora_target": "all",
        "template": "qwen",
        "dataset": "rows",
        "dataset_dir": str(place),
        "output_dir": str(place / f"factory-{os.getpid()}"),
        "num_train_epochs": 1,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
    }
    run_exp(fields | more, callbacks=[clock.callback()])


ONE_BY_ONE = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}
LEAN = {"bf16": False, **ONE_BY_ONE}
# Name -> how it runs, and its settings beyond its defaults. Without AMX or AVX512 bf16 is slow on a CPU. One
# sample a forward is the peers' best there, without padding: it took less than half the seconds of batches
# that were grouped by length (16 rows).
CONTENDERS: dict[str, tuple[Callable[..., None], dict[str, Any]]] = {
    "isotune": (isotune, {}),
    "isotune, checkpointing": (isotune, {"gradient_checkpointing": True}),
    "isotune, leanest": (isotune, {"gradient_checkpointing": True, **ONE_BY_ONE}),
    "naive Trainer": (naive, {}),
    "TRL": (trl, {}),
    "TRL, best": (trl, {"gradient_checkpointing": False, **LEAN}),
    "TRL, leanest": (trl, LEAN),
    "LLaMA-Factory": (llamafactory, {}),
    "LLaMA-Factory, best": (llamafactory, {"disable_gradient_checkpointing": True, **ONE_BY_ONE}),
}


def main() -> None:
    """Run the contender; what libraries print goes to stderr."""
    import torch

    name, place, threads, limit = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    torch.set_num_threads(threads)
    clock = Clock(limit)
    task, settings = CONTENDERS[name]
    with contextlib.redirect_stdout(sys.stderr):
        task(place, clock, **settings)
    print(json.dumps(clock.figures() | {"stopped": 0}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
