"""A sample as text: what is learned is marked, special tokens stand as they are."""

from __future__ import annotations

import sys
from itertools import groupby
from typing import Any

from train.data.sample import IGNORED, Sample

OPEN, CLOSE = "⟦", "⟧"


def segments(tokenizer: Any, sample: Sample) -> list[tuple[str, bool]]:
    """(text, whether it is learned) of each stretch; together the text of all ids."""
    pairs = zip(sample.input_ids, sample.labels, strict=True)
    return [
        (
            tokenizer.decode(
                [token for token, _ in stretch], skip_special_tokens=False, clean_up_tokenization_spaces=False
            ),
            is_learned,
        )
        for is_learned, stretch in groupby(pairs, key=lambda pair: pair[1] != IGNORED)
    ]


def marked(parts: list[tuple[str, bool]]) -> str:
    """The text with brackets around what is learned."""
    return "".join(f"{OPEN}{text}{CLOSE}" if is_learned else text for text, is_learned in parts)


def print_sample(tokenizer: Any, sample: Sample) -> None:
    """Print a sample on stdout: learned text in green on a terminal, in brackets elsewhere."""
    parts = segments(tokenizer, sample)
    title = (
        f"--- {sample.place}: {len(sample.input_ids)} tokens, {sample.num_target_tokens} of them learned ---"
    )
    if not sys.stdout.isatty():
        print(f"{title}\n{marked(parts)}")
        return
    from rich.console import Console
    from rich.text import Text

    text = Text.assemble(*((part, "bold green" if is_learned else "dim") for part, is_learned in parts))
    Console(highlight=False).print(Text(title), text, sep="\n", soft_wrap=True)
