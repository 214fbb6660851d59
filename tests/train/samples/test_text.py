"""The text of the small model is written here: facts that contradict nothing, documents by a seed, cards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from train.checks.tiny import SPECIAL_TOKENS, pretrained_folder
from train.samples import cards, corpus, facts

SOURCES = [Path(str(module.__file__)) for module in (facts, corpus)]


def test_no_question_has_two_answers() -> None:
    answers: dict[str, str] = {}
    for fact in facts.all_facts():
        for question in fact.questions():
            assert answers.setdefault(question, fact.answer) == fact.answer, question
    assert len(answers) > 4000


def test_facts_become_english_sentences() -> None:
    assert facts.Fact("kind", "owl", "bird").statement() == "An owl is a bird."
    assert facts.Fact("sum", "2 plus 3", "5").statement() == "2 plus 3 is 5."
    assert facts.Fact("young", "ant", "larva").questions()[0] == "What is a young ant called?"


def test_the_same_seed_writes_the_same_documents_and_another_one_others() -> None:
    first, again, other = (corpus.make_corpus(300, seed) for seed in (7, 7, 8))
    assert first == again
    assert first.documents != other.documents
    assert len(set(first.documents + first.held_out)) == 300


def test_what_one_seed_holds_out_no_other_seed_learns() -> None:
    held_out = set(corpus.make_corpus(3000, 0).held_out)
    documents = set(corpus.make_corpus(3000, 1).documents)
    assert held_out
    assert not held_out & documents


def test_a_conversation_is_what_the_chat_template_writes() -> None:
    from train.loop.model import load_tokenizer

    tokenizer = load_tokenizer(pretrained_folder())
    messages = [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Good day."}]
    assert tokenizer.apply_chat_template(messages, tokenize=False) == corpus.chat(("Hello!", "Good day."))


def test_every_token_is_a_byte_or_part_of_text_in_these_files() -> None:
    """The markers of turns are Qwen's special tokens: parts of them stand behind marks of punctuation."""
    text = " ".join([*(path.read_text(encoding="utf-8") for path in SOURCES), *SPECIAL_TOKENS]).lower()
    vocabulary = json.loads((pretrained_folder() / "tokenizer.json").read_text(encoding="utf-8"))["model"][
        "vocab"
    ]
    learned = [token for token in vocabulary if len(token) > 1 and token not in SPECIAL_TOKENS]
    assert len(learned) > 1500
    foreign = [token for token in learned if token.strip("ĠĊ?!.").lower() not in text]
    assert foreign == []


@pytest.mark.slow
def test_the_shipped_tokenizer_is_the_one_of_this_text(tmp_path: Path) -> None:
    import hashlib

    import tokenizers

    from train.samples import pretrain

    made = json.loads((pretrained_folder() / "made.json").read_text(encoding="utf-8"))
    text = corpus.make_corpus(pretrain.NUM_DOCUMENTS, pretrain.SEED)
    assert hashlib.sha256("\0".join(text.documents).encode()).hexdigest() == made["documents_sha256"]
    if tokenizers.__version__ != made["versions"]["tokenizers"]:
        pytest.skip(f"tokenizers {tokenizers.__version__} may merge in another order")
    pretrain.make_tokenizer(text).save(str(tmp_path / "tokenizer.json"))
    shipped = (pretrained_folder() / "tokenizer.json").read_bytes()
    assert (tmp_path / "tokenizer.json").read_bytes() == shipped


def test_the_shipped_cards_are_the_ones_of_these_facts(tmp_path: Path) -> None:
    for path, rows in zip((cards.TRAIN_FILE, cards.EVAL_FILE), cards.make_cards(), strict=True):
        cards.write_rows(tmp_path / path.name, rows)
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_no_training_card_is_on_a_fact_of_the_evaluation() -> None:
    rows, evaluated = cards.make_cards()
    assert not {row["output"] for row in rows} & {row["output"] for row in evaluated}
    assert (len(rows), len(evaluated)) == (cards.NUM_ROWS, cards.NUM_EVAL_ROWS)
