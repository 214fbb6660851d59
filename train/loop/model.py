"""Load a checkpoint folder: tokenizer and weights, with nothing missing and nothing fetched."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train import families
from train.data.records import hash_file
from train.data.samples import Samples
from train.data.template import ChatTemplate, TemplateFault
from train.errors import EXIT_CONFIG, UserError, place_of, reading

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

PROBE = "What is momentum? 动量是质量与速度的乘积。"
"""Text that any tokenizer of these families gives back unchanged."""
KINDS = {".json", ".jinja", ".txt", ".model", ".safetensors", ".bin"}
"""Endings of the files that a checkpoint is made of."""
FOREIGN = "copy it again, or move it out of the folder where it is no part of the model"


def quiet_libraries() -> None:
    """Errors only, and no progress bars: in a log they are noise between a run's own lines."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()


def share_files(folder: Path) -> None:
    """Let others read the files, as far as the umask allows. safetensors writes them for their owner alone.

    A refusal is no fault: some mounts know no permissions.
    """
    umask = os.umask(0)
    os.umask(umask)
    for path in folder.iterdir():
        if path.is_file():
            with contextlib.suppress(OSError):
                path.chmod(0o666 & ~umask)


def read_model_config(folder: Path) -> dict[str, Any]:
    """config.json of a checkpoint folder; UserError (exit 78) where the folder is no checkpoint."""
    with reading(f"--model {place_of(folder)}", "give a downloaded checkpoint's folder"):
        is_folder = folder.is_dir()
        found = ", ".join(sorted(entry.name for entry in folder.iterdir())[:8] if is_folder else ())
    if not is_folder:
        raise UserError(
            f"--model {folder}: is no folder",
            "give a downloaded checkpoint's folder; in a container mount it: -v /path/to/model:/model:ro; "
            "a model of the hub is named OWNER/NAME@REVISION",
            EXIT_CONFIG,
        )
    path = folder / "config.json"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as fault:
        raise UserError(
            f"{path}: cannot be read: {fault.strerror}",
            f"the folder holds {found or 'nothing'}; a checkpoint has config.json",
            EXIT_CONFIG,
        ) from None
    except (ValueError, RecursionError) as fault:
        raise UserError(
            f"{path}: is not valid JSON: {fault}", "copy the checkpoint again", EXIT_CONFIG
        ) from None
    if not isinstance(content, dict) or "model_type" not in content:
        raise UserError(f"{path}: has no model_type", "--model takes a transformers checkpoint", EXIT_CONFIG)
    if missing := families.missing_here(content["model_type"]):
        raise UserError(
            f"{path}: model_type {content['model_type']}: {missing}",
            "take an image or an environment with that transformers",
            EXIT_CONFIG,
        )
    if (model_type := content["model_type"]) in families.REFUSED:
        raise UserError(
            f"{path}: model_type {model_type}: transformers has no text model of its own for it",
            "give a text checkpoint; train info --families lists what is taken",
            EXIT_CONFIG,
        )
    return content


def load_tokenizer(folder: Path) -> Any:
    """The checkpoint's own tokenizer; UserError (exit 78) with the library's reason where it does not
    load.
    """
    from transformers import AutoTokenizer

    if not (folder / "tokenizer.json").exists() and not all(
        (folder / name).exists() for name in ("vocab.json", "merges.txt")
    ):
        raise UserError(
            f"--model {folder}: has no tokenizer.json, nor vocab.json with merges.txt",
            "copy the checkpoint's tokenizer files: transformers would make up an empty tokenizer",
            EXIT_CONFIG,
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as fault:  # the library raises many kinds for a damaged folder
        reason = str(fault).strip().splitlines()[0] if str(fault).strip() else type(fault).__name__
        raise UserError(
            f"--model {folder}: the tokenizer does not load: {reason}",
            "copy the checkpoint again",
            EXIT_CONFIG,
        ) from None
    if tokenizer.decode(tokenizer(PROBE, add_special_tokens=False)["input_ids"]) != PROBE:
        raise UserError(
            f"--model {folder}: the tokenizer loses text: {PROBE!r} does not come back from its token ids",
            "its files are incomplete: copy the checkpoint again",
            EXIT_CONFIG,
        )
    return tokenizer


def load_model(folder: Path, dtype: torch.dtype, attn_implementation: str) -> PreTrainedModel:
    """The causal language model with every weight read from the folder.

    transformers fills a missing weight with random numbers and a log line: here it is an error (exit 78).
    """
    from transformers import AutoModelForCausalLM

    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=attn_implementation,
            local_files_only=True,
            output_loading_info=True,
        )
    except Exception as fault:  # as above: damaged, truncated and foreign files raise many kinds
        reason = str(fault).strip().splitlines()[0] if str(fault).strip() else type(fault).__name__
        raise UserError(
            f"--model {folder}: the weights do not load: {reason}", "copy the checkpoint again", EXIT_CONFIG
        ) from None
    model, report = loaded
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    for problem in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        names = sorted(map(str, set(report.get(problem) or ()) - tied))
        if names:
            shown = f"{', '.join(names[:5])} ({len(names)} in all)"
            raise UserError(
                f"--model {folder}: {problem.replace('_', ' ')} in the weights: {shown}",
                "config.json and the .safetensors files do not belong together: copy all of them again",
                EXIT_CONFIG,
            )
    if lacked := missing_operator(getattr(model.config, "layer_types", None) or ()):
        raise UserError(
            f"--model {folder}: {lacked}",
            "take an image or an environment with a newer torch: 2.10 has it",
            EXIT_CONFIG,
        )
    model.config.use_cache = False
    return model


def missing_operator(layer_types: Iterable[str]) -> str:
    """What this torch lacks for a forward of layers of these types, as config.json names them; or nothing.

    The indexed attention of Qwen4-Exp gives scatter 32-bit indices; torch 2.7 takes 64-bit ones alone.
    """
    import torch

    if "indexed_attention" in layer_types:
        try:
            torch.zeros(1).scatter(0, torch.zeros(1, dtype=torch.int32), 1.0)
        except RuntimeError as fault:
            here = f"torch {torch.__version__} has no scatter by 32-bit indices"
            return f"{here}, which indexed attention needs: {fault}"
    return ""


def find_stop_tokens(template: ChatTemplate, folder: Path) -> list[int]:
    """The ids that end an answer: the template's own first, then those of the generation config and
    the tokenizer.
    """
    try:
        found = [template.stop_token_id()]
    except TemplateFault as fault:
        place = template.place or f"--model {folder}"
        raise UserError(
            f"{place}: {fault}", "use the instruct checkpoint's chat template", EXIT_CONFIG
        ) from None
    found += _generation_stops(folder)
    if template.tokenizer.eos_token_id is not None:
        found.append(template.tokenizer.eos_token_id)
    return list(dict.fromkeys(found))


def _generation_stops(folder: Path) -> list[int]:
    path = folder / "generation_config.json"
    if not path.exists():
        return []
    from transformers import GenerationConfig

    try:
        named = GenerationConfig.from_pretrained(folder, local_files_only=True).eos_token_id
    except Exception as fault:  # a damaged file raises many kinds
        raise UserError(f"{path}: does not load: {fault}", "copy the checkpoint again", EXIT_CONFIG) from None
    stops = named if isinstance(named, list) else [] if named is None else [named]
    if not all(isinstance(token, int) for token in stops):
        raise UserError(
            f"{path}: eos_token_id: token ids are due, not {named!r}", "copy it again", EXIT_CONFIG
        )
    return stops


def check_vocabulary(parts: list[Samples | None], stop_token_ids: list[int], vocab_size: int) -> None:
    """UserError (exit 78) where the tokenizer knows tokens that the model has no row for."""
    largest = max(token for part in parts if part for sample in part.samples for token in sample.input_ids)
    largest = max(largest, *stop_token_ids)
    if largest >= vocab_size:
        raise UserError(
            f"--model: its tokenizer gives token {largest}, its weights have {vocab_size} rows",
            "tokenizer and weights are of different checkpoints: copy both from the same one",
            EXIT_CONFIG,
        )


def checkpoint_files(folder: Path) -> list[Path]:
    """The files directly in a checkpoint's or an adapter's folder that loading may read; others are none of
    a run's concern.
    """
    return [path for path in sorted(folder.iterdir()) if path.suffix in KINDS and path.is_file()]


def hash_folder(folder: Path) -> dict[str, str]:
    """Name -> sha256 of each of `checkpoint_files`; UserError (exit 78) where one cannot be read."""
    hashes = {}
    for path in checkpoint_files(folder):
        with reading(path, FOREIGN):
            hashes[path.name] = hash_file(path)
    return hashes


def hash_in_background(folder: Path) -> Future[dict[str, str]]:
    """`hash_folder` in a thread that keeps no process from ending: a stop does not wait for large weights."""
    future: Future[dict[str, str]] = Future()

    def work() -> None:
        try:
            future.set_result(hash_folder(folder))
        except BaseException as fault:  # for whoever asks for the result
            future.set_exception(fault)

    threading.Thread(target=work, name="model-hashes", daemon=True).start()
    return future
