"""The small model that ships: it loads, speaks, is small, and its script gives the same weights again."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train.checks.tiny import pretrained_folder
from train.samples import cards, corpus, pretrain

FACTS = {
    "What colour is a lemon?": "A lemon is yellow.",
    "What does a baker do?": "A baker bakes bread.",
    "What is the opposite of hot?": "The opposite of hot is cold.",
    "Which is bigger, a cat or a horse?": "The horse is bigger.",
    "What is a young dog called?": "A young dog is called a puppy.",
}
HELD_OUT_BOUND = 0.65
"""Nats per token, all tokens of a document: which question is asked cannot be known, only how it goes on."""

RIGHT_CARDS = 20
"""Of the 40 for evaluation, after the recipe `cards`."""


def ask(prompts: list[str], adapter: Path | None = None) -> dict[str, str]:
    import io

    from train.results.answers import generate
    from train.results.opened import ModelOptions

    options = ModelOptions(pretrained_folder(), adapter, "cpu", "fp32", "auto", "auto")
    return {one["prompt"]: one["answer"] for one in generate(options, prompts, None, 64, io.StringIO())}


def made() -> dict[str, Any]:
    return json.loads((pretrained_folder() / "made.json").read_text(encoding="utf-8"))


def test_it_is_at_most_six_megabytes() -> None:
    assert sum(path.stat().st_size for path in pretrained_folder().iterdir()) < 6_000_000


def test_its_loss_on_documents_that_it_has_not_seen_is_low() -> None:
    import torch
    from tokenizers import Tokenizer

    from train.loop.model import load_model

    tokenizer = Tokenizer.from_file(str(pretrained_folder() / "tokenizer.json"))
    rows = pretrain.make_rows(tokenizer, corpus.make_corpus(1500, seed=99).held_out)
    assert len(rows) > 10
    loss = pretrain.held_out_loss(load_model(pretrained_folder(), torch.float32, "sdpa"), rows)
    assert loss < HELD_OUT_BOUND < 0.1 * math.log(pretrain.CONFIG["vocab_size"])
    assert loss == pytest.approx(made()["held_out_loss"], rel=0.15)


def test_it_answers_in_sentences_and_right() -> None:
    assert ask(list(FACTS)) == FACTS


def test_its_tokenizer_gives_the_ids_of_its_file() -> None:
    from tokenizers import Tokenizer

    from train.loop.model import load_tokenizer

    text = corpus.chat(("What is 12 plus 7?", "12 plus 7 is 19. 柠檬"))
    raw = Tokenizer.from_file(str(pretrained_folder() / "tokenizer.json"))
    ids = load_tokenizer(pretrained_folder())(text, add_special_tokens=False)["input_ids"]
    assert ids == raw.encode(text).ids
    assert sum(token < 3 for token in ids) == 4


@pytest.fixture(scope="module")
def few_rows_of_text() -> Any:
    text = corpus.make_corpus(200, seed=0)
    return pretrain.make_rows(pretrain.make_tokenizer(text), text.documents)


def first_steps(rows: Any, steps: int, part: Path | None = None) -> tuple[list[float], Any]:
    import torch

    model = pretrain.new_model()
    losses = pretrain.train(model, rows, pretrain.Plan(steps=steps, horizon=100, batch=2, save_steps=1), part)
    return losses, torch.cat([tensor.detach().flatten() for tensor in model.parameters()])


def test_the_first_steps_are_the_same_each_time(few_rows_of_text: Any) -> None:
    (losses, weights), (again, same) = (first_steps(few_rows_of_text, 2) for _ in range(2))
    assert losses == again
    assert bool((weights == same).all())


def test_a_killed_training_goes_on_exactly(few_rows_of_text: Any, tmp_path: Path) -> None:
    losses, weights = first_steps(few_rows_of_text, 2)
    first_steps(few_rows_of_text, 1, tmp_path / "part")
    again, same = first_steps(few_rows_of_text, 2, tmp_path / "part")
    assert losses == again
    assert bool((weights == same).all())


def test_every_row_is_learned_once_per_epoch() -> None:
    import torch

    rows = torch.arange(7).unsqueeze(1)
    seen = [pretrain.batch_of(rows, step, 2).flatten().tolist() for step in range(3)]
    later = [pretrain.batch_of(rows, step, 2).flatten().tolist() for step in range(3, 6)]
    assert len({row for batch in seen for row in batch}) == 6
    assert seen != later


def test_make_tiny_copies_it(train_command: Callable[..., Any], tmp_path: Path) -> None:
    done = train_command("make-tiny", "--pretrained", "--output", tmp_path / "copy")
    assert done.returncode == 0, done.stderr
    for path in pretrained_folder().iterdir():
        assert (tmp_path / "copy" / path.name).read_bytes() == path.read_bytes()


def test_a_seed_for_a_model_that_is_made_already_is_refused(
    train_command: Callable[..., Any], tmp_path: Path
) -> None:
    done = train_command("make-tiny", "--pretrained", "--seed", "3", "--output", tmp_path / "copy")
    assert (done.returncode, "--seed 3: has no effect" in done.stderr) == (64, True)
    assert not (tmp_path / "copy").exists()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lora", "oft"])
def test_a_short_fine_tune_teaches_the_form_and_keeps_the_facts(tmp_path: Path, kind: str) -> None:
    """Cards on facts that no training row holds: the answers come from what the model knew before."""
    from train.loop.run import run
    from train.recipe import build_config

    flags = {"adapter": kind, "model": pretrained_folder(), "data": cards.TRAIN_FILE, "device": "cpu"}
    places = {"eval_data": cards.EVAL_FILE, "output": tmp_path / "run"}
    results = run(build_config(Path("cards"), {**flags, **places}, ["num_generations=40"])).results
    assert results["eval_loss_after"] < 0.3 * results["eval_loss_before"]
    generations = results["generations"]
    assert not any(one["before"].startswith("topic: ") for one in generations)
    assert all(one["after"].startswith("topic: ") for one in generations)
    assert sum(one["after"] == one["wanted"] for one in generations) >= RIGHT_CARDS
