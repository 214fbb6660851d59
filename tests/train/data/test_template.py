"""Labels by the checkpoint's own chat template: the answer and its stop token, nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from train.data.formats import Record
from train.data.template import IGNORED, ChatTemplate, TemplateFault
from train.errors import UserError
from train.loop.model import load_tokenizer

QWEN3 = "ISOTUNE_TEST_QWEN3"
"""Folder of the real Qwen3 tokenizer; test.sh fetches it."""


def record(answer: str = "p is m times v.", *before: tuple[str, str]) -> Record:
    turns = [*before, ("user", "What is momentum?"), ("assistant", answer)]
    return Record([{"role": role, "content": content} for role, content in turns], "f:1")


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Any:
    return load_tokenizer(tiny)


@pytest.fixture(scope="module")
def qwen3() -> Any:
    folder = os.environ.get(QWEN3, "")
    if not folder:
        pytest.skip(f"no real Qwen3 tokenizer: {QWEN3} names its folder (test.sh sets it)")
    return load_tokenizer(Path(folder))


def learned(tokenizer: Any, sample: Any) -> str:
    return tokenizer.decode([label for label in sample.labels if label != IGNORED])


def test_the_answer_and_its_stop_token_are_learned_and_nothing_else(tokenizer: Any) -> None:
    sample = ChatTemplate(tokenizer).sample(record())
    assert learned(tokenizer, sample) == "p is m times v.<|im_end|>"
    assert sample.labels[-1] == sample.input_ids[-1] == tokenizer.eos_token_id
    assert len(sample.labels) == len(sample.input_ids)


def test_only_the_last_answer_of_a_conversation_is_learned_where_asked(tokenizer: Any) -> None:
    last_only = ChatTemplate(tokenizer, train_on="last")
    sample = last_only.sample(record("last", ("user", "q"), ("assistant", "first")))
    assert learned(tokenizer, sample) == "last<|im_end|>"


def test_the_prompt_is_what_the_template_gives_a_server(tokenizer: Any) -> None:
    sample = ChatTemplate(tokenizer).sample(record())
    served = tokenizer.apply_chat_template(
        record().messages[:-1], add_generation_prompt=True, return_dict=False
    )
    assert list(sample.input_ids[: len(served)]) == served
    assert all(label == IGNORED for label in sample.labels[: len(served)])


@pytest.mark.parametrize(
    ("answer", "before"),
    [("a <|im_end|> b", ()), ("a", (("user", "q<|im_start|>"), ("assistant", "r")))],
)
def test_a_control_token_inside_a_text_is_a_fault(
    tokenizer: Any, answer: str, before: tuple[tuple[str, str], ...]
) -> None:
    """It would end or open a turn there, and the model would learn to."""
    with pytest.raises(TemplateFault, match="text holds the control token <.im_"):
        ChatTemplate(tokenizer).sample(record(answer, *before))


def test_the_number_of_target_tokens_is_that_of_the_labels_that_something_predicts(tokenizer: Any) -> None:
    sample = ChatTemplate(tokenizer).sample(record())
    assert sample.num_target_tokens == sum(label != IGNORED for label in sample.labels)


def test_a_checkpoint_without_a_chat_template_is_refused(tokenizer: Any, tiny: Path) -> None:
    bare = load_tokenizer(tiny)
    bare.chat_template = None
    with pytest.raises(UserError, match="no chat template"):
        ChatTemplate(bare)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% for m in messages %}{{ m['content'] }}{% endfor %}", "no stop token"),
        (
            "{{ messages|length }}{% for m in messages %}{{ m['content'] + '<|im_end|>' }}{% endfor %}",
            "differently",
        ),
        ("{{ raise_exception('only one turn') }}", "refuses the conversation: only one turn"),
    ],
)
def test_a_template_that_cannot_be_learned_from_says_why(tiny: Path, template: str, reason: str) -> None:
    odd = load_tokenizer(tiny)
    odd.chat_template = template
    with pytest.raises(TemplateFault, match=reason):
        ChatTemplate(odd).sample(record())


def test_qwen3_prefills_an_empty_thought_that_is_never_learned(qwen3: Any) -> None:
    sample = ChatTemplate(qwen3, "auto").sample(record())
    prompt_length = sample.labels.index(next(label for label in sample.labels if label != IGNORED))
    assert qwen3.decode(sample.input_ids[:prompt_length]).endswith(
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert learned(qwen3, sample) == "p is m times v.<|im_end|>"


def test_qwen3_learns_the_thought_that_an_answer_holds(qwen3: Any) -> None:
    answer = "<think>\nmass, velocity\n</think>\n\np is m times v."
    sample = ChatTemplate(qwen3, "auto").sample(record(answer))
    assert learned(qwen3, sample) == f"{answer}<|im_end|>"


def test_qwen3_prompt_equals_the_serving_prompt_in_both_modes(qwen3: Any) -> None:
    for thinking, answer in (("off", "a"), ("on", "<think>\nb\n</think>\n\na")):
        sample = ChatTemplate(qwen3, thinking).sample(record(answer))
        served = qwen3.apply_chat_template(
            record().messages[:-1],
            add_generation_prompt=True,
            enable_thinking=thinking == "on",
            return_dict=False,
        )
        assert list(sample.input_ids[: len(served)]) == served
