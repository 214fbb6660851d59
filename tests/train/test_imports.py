"""Imports without a search for garbage: it is on again afterwards, and goes past what was imported."""

from __future__ import annotations

import gc

import pytest

from train.imports import without_collecting


def test_garbage_is_not_looked_for_while_importing_and_is_afterwards() -> None:
    kept = gc.get_freeze_count()
    with without_collecting():
        assert not gc.isenabled()
        made = [[number] for number in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= kept + len(made)
    gc.unfreeze()


def test_it_is_on_again_after_an_import_that_fails_and_stays_off_where_it_was_off() -> None:
    with pytest.raises(ImportError), without_collecting():
        raise ImportError("libdriver.so")
    assert gc.isenabled()
    gc.disable()
    try:
        with without_collecting():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
        gc.unfreeze()
