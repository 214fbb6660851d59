"""Tokenizers and conversations that tests of the data room share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from train.loop.model import load_tokenizer

QWEN3 = "ISOTUNE_TEST_QWEN3"
"""Folder of the real Qwen3 tokenizer; test.sh fetches it."""


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Any:
    """The tiny checkpoint's; tests must not change it."""
    return load_tokenizer(tiny)


@pytest.fixture(scope="session")
def qwen3() -> Any:
    """The real Qwen3 tokenizer with its chat template; tests must not change it."""
    folder = os.environ.get(QWEN3, "")
    if not folder:
        pytest.skip(f"no real Qwen3 tokenizer: {QWEN3} names its folder (test.sh sets it)")
    return load_tokenizer(Path(folder))


@pytest.fixture
def fresh_qwen3(qwen3: Any) -> Iterator[Any]:
    """The Qwen3 tokenizer, whose template a test may change: it is put back."""
    own = qwen3.chat_template
    yield qwen3
    qwen3.chat_template = own
