"""What the tests of the checks share: a build info, an installed package, a folder with trained adapters."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from build_infos import build_content

from train.checks import training
from train.image import VARIABLE, BuildInfo, read_build_info


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., BuildInfo]:
    """Write a build-info.json with these fields and read it as `train` does."""

    def make(**fields: Any) -> BuildInfo:
        path = tmp_path / "build-info.json"
        path.write_text(json.dumps(build_content(**fields)), encoding="utf-8")
        monkeypatch.setenv(VARIABLE, str(path))
        image = read_build_info()
        assert image is not None
        return image

    return make


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed distribution `brick` 1.0 with one file, findable by importlib.metadata."""
    site = tmp_path / "site"
    info = site / "brick-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "brick.py").write_text("print('clay')\n", encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brick\nVersion: 1.0\n", encoding="utf-8")
    digest = (
        base64.urlsafe_b64encode(hashlib.sha256((site / "brick.py").read_bytes()).digest())
        .rstrip(b"=")
        .decode()
    )
    record = f"brick.py,sha256={digest},14\nbrick-1.0.dist-info/METADATA,,\nbrick-1.0.dist-info/RECORD,,\n"
    (info / "RECORD").write_text(record, encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    return site


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A folder in which both adapters were trained by the check itself."""
    made = training.Bench(tmp_path_factory.mktemp("bench"))
    training.trains(made, "lora")
    training.trains(made, "oft")
    return made
