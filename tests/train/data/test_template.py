"""Labels by the checkpoint's own chat template: the answer and its stop token, nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conversations import TEMPLATES, chat

from train.data.formats import Record
from train.data.template import IGNORED, ChatTemplate, TemplateFault
from train.errors import UserError
from train.loop.model import load_tokenizer


def record(answer: str = "p is m times v.", *before: tuple[str, str]) -> Record:
    turns = [*before, ("user", "What is momentum?"), ("assistant", answer)]
    return Record([{"role": role, "content": content} for role, content in turns], "f:1")


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


def golden(tokenizer: Any, template: ChatTemplate) -> tuple[str, list[int]]:
    (sample,) = template.samples(chat("hi", "yo"))
    return tokenizer.decode(list(sample.input_ids)), list(sample.input_ids)


@pytest.mark.parametrize(
    ("name", "start", "start_ids"),
    [
        (
            "qwen2.jinja",
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n",
            [151644, 8948, 198, 2610, 525, 264, 10950, 17847, 13, 151645, 198],
        ),
        (
            "qwen2_5.jinja",
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. "
            "You are a helpful assistant.<|im_end|>\n",
            [
                *(151644, 8948, 198, 2610, 525, 1207, 16948, 11, 3465, 553, 54364, 14817, 13),
                *(1446, 525, 264, 10950, 17847, 13, 151645, 198),
            ],
        ),
        (None, "", []),
    ],
)
def test_each_family_s_own_default_system_text_is_rendered(
    fresh_qwen3: Any, name: str | None, start: str, start_ids: list[int]
) -> None:
    """Golden text and ids: a template of another family, or a default of ours, would show here."""
    template = ChatTemplate(fresh_qwen3, chat_template=TEMPLATES / name if name else None)
    thought, thought_ids = ("", []) if name else ("<think>\n\n</think>\n\n", [151667, 271, 151668, 271])
    text, ids = golden(fresh_qwen3, template)
    assert text == (f"{start}<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n{thought}yo<|im_end|>")
    frame = [151644, 872, 198, 6023, 151645, 198, 151644, 77091, 198]
    assert ids == start_ids + frame + thought_ids + [16032, 151645]


def test_the_thinking_switch_is_one_of_the_template_or_an_error(qwen3: Any, tokenizer: Any) -> None:
    assert ChatTemplate(qwen3, "off").has_switch()
    assert not ChatTemplate(tokenizer).has_switch()
    for thinking in ("on", "off"):
        with pytest.raises(UserError, match=f"thinking {thinking}: enable_thinking changes nothing"):
            ChatTemplate(tokenizer, thinking)


def test_a_thought_where_thinking_is_off_is_a_fault(qwen3: Any) -> None:
    with pytest.raises(TemplateFault, match="holds a <think> block, and thinking is off"):
        ChatTemplate(qwen3, "off").sample(record("<think>\nb\n</think>\n\na"))


def test_an_answer_is_never_taken_to_end_at_a_tag_that_it_holds(fresh_qwen3: Any) -> None:
    """`</think>` is a token of its own, and no end of an answer."""
    fresh_qwen3.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    with pytest.raises(TemplateFault, match="no stop token"):
        ChatTemplate(fresh_qwen3).sample(record("<think>\nb\n</think>\n\na"))


def test_a_template_that_ends_one_answer_otherwise_is_a_fault(tiny: Path) -> None:
    odd = load_tokenizer(tiny)
    odd.chat_template = (
        "{% for m in messages %}{{ m['content'] }}{{ '<|im_end|>' if m['content']|length < 9 }}{% endfor %}"
    )
    template = ChatTemplate(odd)
    assert template.stop.token == "<|im_end|>"
    with pytest.raises(TemplateFault, match="no stop token after an answer"):
        template.sample(record("an answer of more than nine letters"))


def test_a_template_given_by_file_is_used_and_saved_with_the_tokenizer(tiny: Path, tmp_path: Path) -> None:
    own = load_tokenizer(tiny)
    template = ChatTemplate(own, chat_template=TEMPLATES / "qwen2.jinja")
    assert "You are a helpful assistant." in template.prompt(record())
    own.save_pretrained(str(tmp_path))
    served = load_tokenizer(tmp_path).apply_chat_template(
        record().messages[:-1], tokenize=False, add_generation_prompt=True
    )
    assert served == template.prompt(record())


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "cannot be read"), (b"", "is empty"), (b"\xff", "UTF-8")]
)
def test_a_template_s_file_that_cannot_serve_is_named(
    tokenizer: Any, tmp_path: Path, content: bytes | None, reason: str
) -> None:
    path = tmp_path / "own.jinja"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=f"own.jinja: .*{reason}"):
        ChatTemplate(tokenizer, chat_template=path)
