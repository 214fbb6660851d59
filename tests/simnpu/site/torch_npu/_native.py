"""The compiled part, loaded from where SIMNPU_LIBRARY says."""

from __future__ import annotations

import importlib.util
import os
from typing import Any


def _load() -> Any:
    path = os.environ.get("SIMNPU_LIBRARY")
    if not path:
        raise ImportError("libascend_hal.so: cannot open shared object file: No such file or directory")
    spec = importlib.util.spec_from_file_location("simnpu_native", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


native = _load()
