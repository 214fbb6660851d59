"""Greedy answers to prompts of the command line or of a file: `train generate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from train.data.formats import Record
from train.data.samples import Policies, Samples, load_samples
from train.data.template import ChatTemplate, TemplateFault
from train.data.text import is_utf8
from train.errors import EXIT_CONFIG, EXIT_USAGE, UserError
from train.loop.model import check_vocabulary
from train.results.generate import answer
from train.results.opened import ModelOptions, load, open_checkpoint


def generate(
    options: ModelOptions,
    prompts: Sequence[str],
    data: tuple[Path, int | None, int] | None,
    max_new_tokens: int,
    lines: IO[str],
) -> list[dict[str, str]]:
    """`prompt` and `answer` of each prompt, and `wanted` where a file says it.

    `data`: a file, how many of its rows from the first on, and its longest sample in tokens. UserError: 64
    prompts, 65 data, 69 device, 78 configuration.
    """
    opened = open_checkpoint(options, lines)
    samples = None
    if data is None:
        records = prompt_records(prompts, opened.template)
    else:
        path, limit, max_length = data
        samples = load_samples(path, opened.template, Policies(max_length, "drop"))
        records = samples.records[:limit]
    for line in opened.choices.lines():
        print(line, file=lines, flush=True)
    model = load(opened, lines)
    _check_rows(samples, opened.stop_token_ids, records, opened.template, model)
    answers = []
    for record in records:
        made = answer(model, opened.template, record, opened.stop_token_ids, max_new_tokens)
        wanted = record.messages[-1]["content"]
        answers.append({"prompt": record.messages[-2]["content"], "answer": made})
        answers[-1] |= {"wanted": wanted} if data else {}
    return answers


def prompt_records(prompts: Sequence[str], template: ChatTemplate) -> list[Record]:
    """A record for each prompt, with an answer that nobody sees; UserError (exit 64) lists those that
    cannot be asked.
    """
    records, faults = [], []
    for number, prompt in enumerate(prompts, start=1):
        messages = [{"role": "user", "content": prompt}, {"role": "assistant", "content": "unseen"}]
        records.append(Record(messages, f"--prompt {number}"))
        if not is_utf8(prompt):
            faults.append(f"--prompt {number}: {prompt[:40]!r} is not UTF-8 text")
            continue
        try:
            template.sample(records[-1])
        except TemplateFault as fault:
            faults.append(f"--prompt {number}: {fault}")
        if not prompt.strip():
            faults.append(f"--prompt {number}: is empty")
    if faults:
        raise UserError("\n".join(faults), "give the text of a question", EXIT_USAGE)
    return records


def _check_rows(
    samples: Samples | None,
    stop_token_ids: list[int],
    records: Sequence[Record],
    template: ChatTemplate,
    model: Any,
) -> None:
    rows = model.get_output_embeddings().weight.shape[0]
    if samples is not None:
        check_vocabulary([samples], stop_token_ids, rows)
        return
    largest = max(max(template.sample(record).input_ids) for record in records)
    if max(largest, *stop_token_ids) >= rows:
        raise UserError(
            f"--model: its tokenizer gives token {largest}, its weights have {rows} rows",
            "tokenizer and weights are of different checkpoints: copy both from the same one",
            EXIT_CONFIG,
        )
