"""Imports of heavy libraries: a million objects that stay, and no garbage to look for among them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collecting() -> Iterator[None]:
    """Import without Python's search for garbage, a quarter of what torch and transformers take.

    What was made is set apart afterwards: no later search goes through it again.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_on:
            gc.enable()
