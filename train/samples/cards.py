"""Rows that teach the pretrained model another form of answer, a card: `python -m train.samples.cards`.

The model knows the facts and has never seen a card: what a fine-tune adds is the form. The rows for
evaluation are on facts that no training row holds.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from train.samples.corpus import Writer
from train.samples.facts import Fact

SEED = 1
NUM_ROWS, NUM_EVAL_ROWS = 400, 40
LEFT_OUT = ("sum", "difference", "bigger")
"""A card is on one thing; and a model this small does not reckon well."""
HERE = Path(__file__).parent
TRAIN_FILE, EVAL_FILE = HERE / "cards.jsonl", HERE / "cards-eval.jsonl"

Row = dict[str, str]


def make_cards() -> tuple[list[Row], list[Row]]:
    """Alpaca rows for training and for evaluation, one per fact; the same ones each time."""
    generator = random.Random(SEED)
    writer = Writer(generator)
    facts: dict[Fact, None] = {}
    while len(facts) < NUM_ROWS + NUM_EVAL_ROWS:
        fact = writer.fact()
        if fact.topic not in LEFT_OUT:
            facts[fact] = None
    rows = [_card(fact, generator.choice(fact.questions())) for fact in facts]
    return rows[:NUM_ROWS], rows[NUM_ROWS:]


def _card(fact: Fact, question: str) -> Row:
    card = f"topic: {fact.topic}, about: {fact.about}, answer: {fact.answer}"
    return {"instruction": question, "input": "", "output": card}


def write_rows(path: Path, rows: list[Row]) -> None:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    for path, rows in zip((TRAIN_FILE, EVAL_FILE), make_cards(), strict=True):
        write_rows(path, rows)
