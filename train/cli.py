"""The `train` command. Heavy libraries are imported by the commands that need them, never here."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from train import commands, device_faults
from train.checks.doctor import doctor_command
from train.detect import require_torch
from train.errors import (
    EXIT_STOPPED,
    EXIT_TRAINING,
    EXIT_USAGE,
    MAKE_ROOM,
    UserError,
    is_disk_full,
    place_of,
)
from train.launch_reports import is_started
from train.missing import missing_library
from train.policy import set_image_environment
from train.stop import Stopped, listen
from train.streams import lasting, open_missing, settle

if TYPE_CHECKING:
    from train.config import RunConfig

app = typer.Typer(
    help="Fine-tune with LoRA or OFT: train --adapter lora|oft --model DIR --data FILE --output DIR",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

FLAGS = ("adapter", "model", "data", "output", "eval_data")


@app.callback(invoke_without_command=True)
def fine_tune(
    context: typer.Context,
    adapter: Annotated[str | None, typer.Option(help="lora or oft", metavar="lora|oft")] = None,
    model: Annotated[
        str | None,
        typer.Option(help="folder of a Qwen checkpoint, or hub id: OWNER/NAME@REVISION", metavar="DIR"),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(
            help="training rows: a file, a folder or a glob; may be given many times", metavar="FILE"
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(help="folder for the results: new, empty, or of an unfinished run", metavar="DIR"),
    ] = None,
    eval_data: Annotated[
        str | None, typer.Option(help="rows for evaluation loss and generations", metavar="FILE")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help="a YAML recipe, or the name of one in train/recipes; the command line wins",
            metavar="FILE",
        ),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="any field of the recipe, for example lora.r=16", metavar="KEY=VALUE"),
    ] = None,
    nproc: Annotated[
        str | None,
        typer.Option(help="processes on this machine, one per device; auto: all devices", metavar="N|auto"),
    ] = None,
    json_schema: Annotated[bool, typer.Option("--json-schema", help="print the schema of a recipe")] = False,
) -> None:
    """Fine-tune; or one of the commands below."""
    given = dict(zip(FLAGS, (adapter, model, data, output, eval_data), strict=True))
    named = {f"--{name.replace('_', '-')}": value for name, value in given.items()}
    used = [
        flag
        for flag, value in [
            *named.items(),
            ("--config", config),
            ("--set", assignments),
            ("--nproc", nproc),
        ]
        if value is not None
    ]
    if context.invoked_subcommand is not None:
        if used or json_schema:
            raise UserError(
                f"{[*used, '--json-schema'][0]}: belongs to fine-tuning, not to {context.invoked_subcommand}"
            )
        return
    if json_schema:
        from train.config import RunConfig

        typer.echo(json.dumps(RunConfig.model_json_schema(), indent=2, ensure_ascii=False))
        return
    if not used:
        typer.echo(context.get_help())
        return
    from train.launch import asked_for

    asked = asked_for(nproc, os.environ)
    with contextlib.redirect_stdout(None) if is_started() else contextlib.nullcontext():
        run_config = _checked(config, given, assignments or [])
    with lasting():
        code = None if asked is None else _launch(run_config, asked, context.obj)
        if code is None:
            _run(run_config)
    raise typer.Exit(code or 0)


def _checked(recipe: Path | None, flags: dict[str, Any], assignments: list[str]) -> RunConfig:
    from train.recipe import build_config

    config = build_config(recipe, flags, assignments)
    from train.loop.preflight import check_places

    check_places(config)
    require_torch()
    return config


def _launch(config: RunConfig, asked: str, arguments: list[str]) -> int | None:
    """The exit code of the processes that ran; None where this process is the only one to run."""
    from train.launch import launch, plan

    planned = plan(config, asked, os.environ)
    return launch(planned, arguments) if planned else None


def _run(config: RunConfig) -> None:
    from train.loop.processes import environment_rank
    from train.loop.run import run

    with contextlib.ExitStack() as stack:
        if environment_rank():  # of many processes one says how it goes
            nowhere = stack.enter_context(Path(os.devnull).open("w", encoding="utf-8"))
            stack.enter_context(contextlib.redirect_stdout(nowhere))
        outcome = run(config)
    if environment_rank():
        return
    results = outcome.results
    typer.echo(
        f"finished: {results['num_steps']} steps, "
        f"loss {results['first_loss']:.3f} -> {results['last_loss']:.3f}, "
        f"{results['seconds']:.0f} s; results in {config.output}"
    )


@app.command()
def verify(
    build: Annotated[bool, typer.Option("--build", help="only the part that needs no device")] = False,
    device: Annotated[bool, typer.Option("--device", help="only the part that needs the device")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="a JSON object on stdout, the lines on stderr")
    ] = False,
) -> None:
    """Prove that this image or environment is what its lock says, and that it trains."""
    from train.checks.verify import verify as run_checks

    parts = {"build": build or not device, "device": device or not build}
    lines = sys.stderr if as_json else sys.stdout
    report = run_checks(parts, lines)
    print(report.summary(), file=lines)
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=2))
    raise typer.Exit(report.exit_code)


@app.command("make-tiny")
def make_tiny_command(
    output: Annotated[Path, typer.Option(help="a new or empty folder", metavar="DIR")],
    kind: Annotated[str, typer.Option(help="what the model reads", metavar="text")] = "text",
    seed: Annotated[
        int | None, typer.Option(help="of the random weights; 0 where not given", min=0, max=2**63 - 1)
    ] = None,
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="copy the one that ships, which knows simple English")
    ] = False,
) -> None:
    """Make a deterministic tiny Qwen2 checkpoint, for demos and tests."""
    if kind != "text":
        raise UserError(f"--kind {kind}: is not a kind", "the kinds are: text")
    if pretrained and seed is not None:
        raise UserError(f"--seed {seed}: has no effect with --pretrained", "leave one of them out")
    from train.checks.tiny import copy_pretrained, make_tiny

    if pretrained:
        copy_pretrained(output)
        typer.echo(f"copied the small pretrained text model to {output}")
        return
    make_tiny(output, seed or 0)
    typer.echo(f"made a tiny text model in {output}")


app.command("doctor")(doctor_command)
app.command("check-data")(commands.check_data_command)
app.command("eval")(commands.eval_command)
app.command("generate")(commands.generate_command)
app.command("merge")(commands.merge_command)
app.command("info")(commands.info_command)


def main(arguments: list[str] | None = None) -> None:
    """Entry point: runs a command and exits with its code (README lists them)."""
    open_missing()
    listen()
    code = call(sys.argv[1:] if arguments is None else arguments)
    settle()
    if os.environ.get("WORLD_SIZE", "1") != "1":  # at their end libraries wait for ranks that are gone
        os._exit(code)
    sys.exit(code)


def _refuse_repeated(arguments: list[str]) -> None:
    """UserError (exit 64) where an option that holds one value is given twice: the first would be lost."""
    many = {"--set", "--prompt"}
    command = next((word for word in arguments if not word.startswith("-")), "")
    if arguments[:1] != [command] or command == "check-data":
        many.add("--data")
    names = [word.partition("=")[0] for word in arguments if word.startswith("--")]
    twice = sorted({name for name in names if names.count(name) > 1} - many)
    if twice:
        raise UserError("\n".join(f"{name}: is given twice" for name in twice), "give it once")


def _system_fault(fault: Exception) -> UserError:
    if not isinstance(fault, OSError):
        raise fault
    place = f"{place_of(fault.filename)}: " if fault.filename else ""
    hint = MAKE_ROOM if is_disk_full(fault) else f"what does the system let uid {os.getuid()} do there?"
    return UserError(f"{place}{fault.strerror or fault}", hint, EXIT_TRAINING)


def _to_stderr(message: str) -> None:
    from train.loop.processes import environment_rank

    rank = environment_rank()
    prefix = f"rank {rank}: " if rank else ""
    with contextlib.suppress(OSError):  # it may have no reader any more; the exit code says it too
        print("\n".join(prefix + line for line in message.splitlines()), file=sys.stderr)


def call(arguments: list[str], tell: Callable[[str], None] = _to_stderr) -> int:
    """Run the command line; faults of the user become `error:` and `hint:` lines, given to `tell`, and an
    exit code.
    """
    # Before torch loads OpenMP. Threads that wait by spinning nearly double a step on a host that does
    # anything else, and save at most a tenth of it on an idle one: tests/bench/waiting.py measures both.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # No library of this process asks the hub for anything; train/hub.py says when another one may.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    set_image_environment()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a log in another encoding must not cost a run
            stream.reconfigure(errors="backslashreplace")
    try:
        _refuse_repeated(arguments)
        with device_faults.told():
            result = app(arguments, standalone_mode=False, prog_name="train", obj=arguments)
        with contextlib.suppress(BrokenPipeError):  # the reader, such as `head`, has enough: not a fault
            sys.stdout.flush()
    except UserError as fault:
        tell(str(fault))
        return fault.exit_code
    except typer.TyperException as fault:
        tell(f"error: {fault.format_message()}\nhint: train --help")
        return EXIT_USAGE
    except (ImportError, OSError, RuntimeError) as fault:
        told = missing_library(fault) or _system_fault(fault)
        tell(str(told))
        return told.exit_code
    except Stopped as stop:
        if stop.checkpoint is None:
            tell(f"error: {stop}; no checkpoint was saved")
            return 128 + stop.number
        tell(f"error: {stop}; {stop.checkpoint} is saved\nhint: {stop.hint}")
        return EXIT_STOPPED
    return result if isinstance(result, int) else 0
