"""The commands on what a run has made: eval, generate, merge, info. Thin; `train.results` does the work."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import IO, Annotated, Any, Literal

import typer

from train.errors import EXIT_DATA, UserError

Model = Annotated[
    Path, typer.Option(help="folder of the base checkpoint, or hub id: OWNER/NAME@REVISION", metavar="DIR")
]
AllowNetwork = Annotated[bool, typer.Option("--allow-network", help="a model of the hub may be downloaded")]
Adapter = Annotated[
    Path, typer.Option(help="folder of a trained adapter; its kind is read there", metavar="DIR")
]
MaybeAdapter = Annotated[
    Path | None, typer.Option(help="folder of a trained adapter; its kind is read there", metavar="DIR")
]
Device = Annotated[
    Literal["auto", "cuda", "npu", "cpu"], typer.Option(help="auto: what the image was built for")
]
Precision = Annotated[
    Literal["auto", "bf16", "fp16", "fp32"], typer.Option(help="of the frozen weights and products")
]
Attention = Annotated[Literal["auto", "sdpa", "eager"], typer.Option(help="how attention is computed")]
Probe = Annotated[
    Literal["auto", "again", "off"], typer.Option(help="compare the device with the CPU first; off: trust it")
]
Thinking = Annotated[Literal["auto", "on", "off"], typer.Option(help="the chat template's own switch")]
MaxLength = Annotated[int, typer.Option(help="longer rows of the file are left out and counted", min=8)]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout, the lines on stderr")]


def eval_command(
    model: Model,
    data: Annotated[Path, typer.Option(help="rows with answers: a file, a folder or a glob", metavar="FILE")],
    adapter: MaybeAdapter = None,
    batch_size: Annotated[int, typer.Option(help="samples of one forward", min=1)] = 4,
    max_length: MaxLength = 2048,
    device: Device = "auto",
    precision: Precision = "auto",
    attn_implementation: Attention = "auto",
    probe: Probe = "auto",
    thinking: Thinking = "auto",
    train_on: Annotated[
        Literal["all", "last"], typer.Option(help="which assistant turns count, as when training")
    ] = "all",
    allow_network: AllowNetwork = False,
    as_json: AsJson = False,
) -> None:
    """Loss, perplexity and token accuracy on a file, without and with an adapter."""
    model = _resolved(model, allow_network)
    from train.results.evaluate import evaluate, table
    from train.results.opened import ModelOptions

    options = ModelOptions(model, adapter, device, precision, attn_implementation, thinking, train_on, probe)
    report = evaluate(options, data, batch_size, max_length, _lines(as_json))
    _show(report, table(report), as_json)


def generate_command(
    model: Model,
    adapter: MaybeAdapter = None,
    prompt: Annotated[
        list[str] | None, typer.Option(help="a question; may be given many times", metavar="TEXT")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="rows whose prompts are answered", metavar="FILE")] = None,
    limit: Annotated[int | None, typer.Option(help="the first N rows of the file only", min=1)] = None,
    max_new_tokens: Annotated[
        int, typer.Option(help="longest answer, in tokens", min=1, max=10_000_000)
    ] = 256,
    max_length: MaxLength = 2048,
    device: Device = "auto",
    precision: Precision = "auto",
    attn_implementation: Attention = "auto",
    probe: Probe = "auto",
    thinking: Thinking = "auto",
    allow_network: AllowNetwork = False,
    as_json: AsJson = False,
) -> None:
    """Greedy answers to prompts, or to the prompts of a file."""
    if bool(prompt) == (data is not None):
        raise UserError("--prompt, --data: one of them is due", "--prompt TEXT, or --data FILE [--limit N]")
    if limit is not None and data is None:
        raise UserError(f"--limit {limit}: has no effect without --data", "leave it out, or add --data FILE")
    model = _resolved(model, allow_network)
    from train.results.answers import generate
    from train.results.opened import ModelOptions

    options = ModelOptions(model, adapter, device, precision, attn_implementation, thinking, probe=probe)
    rows = (data, limit, max_length) if data else None
    answers = generate(options, prompt or [], rows, max_new_tokens, _lines(as_json))
    text = [f"{name}: {value}" for answer in answers for name, value in answer.items()]
    _show(answers, text, as_json)


def merge_command(
    model: Model,
    adapter: Adapter,
    output: Annotated[Path, typer.Option(help="a new or empty folder", metavar="DIR")],
    dtype: Annotated[
        Literal["auto", "fp32", "bf16", "fp16"],
        typer.Option(help="of the weights; auto: as the base's files"),
    ] = "auto",
    force: Annotated[
        bool, typer.Option("--force", help="also an OFT adapter that is no rotation any more")
    ] = False,
    device: Device = "auto",
    probe: Probe = "auto",
    allow_network: AllowNetwork = False,
    as_json: AsJson = False,
) -> None:
    """Write base and adapter as one plain checkpoint, and compare it with them."""
    model = _resolved(model, allow_network)
    from train.adapters.fingerprint import percent
    from train.results.merge import MergeOptions, merge

    report = merge(MergeOptions(model, adapter, output, dtype, force, device, probe), _lines(as_json))
    checks = report["checks"]
    line = (
        f"merged into {output} ({report['dtype']}): logits differ from those of base and adapter by "
        f"{percent(checks['reloaded'])} of their spread, {percent(checks['allowed'])} is allowed; "
        f"the adapter's own effect is {percent(checks['effect_on_logits'])}"
    )
    _show(report, [line], as_json)


def check_data_command(
    model: Annotated[str | None, typer.Option(help="folder of the base checkpoint", metavar="DIR")] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="training rows; may be given many times", metavar="FILE")
    ] = None,
    eval_data: Annotated[str | None, typer.Option(help="rows for evaluation", metavar="FILE")] = None,
    config: Annotated[
        Path | None, typer.Option(help="a recipe, as for training; the command line wins", metavar="FILE")
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="any field of the recipe", metavar="KEY=VALUE")
    ] = None,
    print_samples: Annotated[
        int, typer.Option("--print-sample", help="show the first N samples, what is learned marked", min=0)
    ] = 0,
    as_json: AsJson = False,
) -> None:
    """Every bad row, lengths, what is learned and what would be left out or cut; no weights are loaded."""
    from train.data.check import as_dict, check, read_config, report_lines, together
    from train.data.shown import print_sample

    flags = {"model": model, "data": data, "eval_data": eval_data}
    recipe = read_config(config, flags, assignments or [])
    template, files = check(recipe)
    notes, faults = together(recipe, files)
    if as_json:
        shown = [as_dict(file, template, print_samples) for file in files]
        _show({"files": shown, "mixture": notes, "errors": [fault.message for fault in faults]}, [], as_json)
    for file in [] if as_json else files:
        typer.echo("\n".join(report_lines(file)))
        for sample in file.loaded.samples[:print_samples] if file.loaded else []:
            print_sample(template.tokenizer, sample)
    for note in [] if as_json else notes:
        typer.echo(note)
    faults = [UserError(file.error, file.hint, EXIT_DATA) for file in files if file.error] + faults
    if faults:
        hints = "; ".join(dict.fromkeys(fault.hint for fault in faults if fault.hint))
        raise UserError("\n".join(fault.message for fault in faults), hints, faults[0].exit_code)


def info_command(
    folder: Annotated[
        Path | None,
        typer.Argument(help="folder of an adapter, a run or a checkpoint; or a hub id", metavar="DIR"),
    ] = None,
    show_families: Annotated[
        bool, typer.Option("--families", help="the model families, and what the tests have shown of each")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """What an adapter, a run or a checkpoint is: kind, settings, base, versions, results."""
    if (folder is not None) == show_families:
        raise UserError(
            "info: one of DIR and --families is due", "train info OUTPUT, or train info --families"
        )
    if folder is None:
        from train import families

        _show({"families": families.table()}, families.table_lines(), as_json)
        return
    from train.hub import cached
    from train.results.describe import describe, lines

    facts = describe(cached(folder))
    _show(facts, lines(facts), as_json)


def _resolved(model: Path, allow_network: bool) -> Path:
    """The folder of `--model`; before any heavy library is loaded."""
    from train.hub import resolve

    return resolve(model, allow_network)


def _lines(as_json: bool) -> IO[str]:
    """Where lines for a reader go: stdout holds nothing but the JSON where that was asked for."""
    return sys.stderr if as_json else sys.stdout


def _show(content: Any, lines: list[str], as_json: bool) -> None:
    typer.echo(json.dumps(content, indent=2, ensure_ascii=False) if as_json else "\n".join(lines))
