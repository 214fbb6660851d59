"""The parts of the import script, on a package of a few bytes; no time is asserted."""

from __future__ import annotations

import subprocess
from pathlib import Path

import import_time
import pytest
from import_time import Taken


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder of packages with one wheel's files: a module, and a test that trimming takes out."""
    folder = tmp_path / "packages"
    for name in ("brick/__init__.py", "brick/tests/test_brick.py", "brick-1.0.dist-info/RECORD"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("", encoding="utf-8")
    (folder / "brick-1.0.dist-info/RECORD").write_text(
        "brick/__init__.py,,\nbrick/tests/test_brick.py,,\n", encoding="utf-8"
    )
    return folder


def test_both_environments_import_the_same_files_but_those_that_trimming_takes_out(
    packages: Path, tmp_path: Path
) -> None:
    pair = import_time.make_pair(packages, tmp_path)
    found = {name: next(prefix.glob("lib/*/site-packages")) for name, prefix in pair.items()}
    assert (found["untrimmed"] / "brick/tests/test_brick.py").exists()
    assert not (found["trimmed"] / "brick/tests").exists()
    assert (packages / "brick/tests/test_brick.py").exists()
    files = {(site / "brick/__init__.py").stat().st_ino for site in (packages, *found.values())}
    assert len(files) == 1
    taken = import_time.measure(pair, "import brick", rounds=1)
    assert [len(taken[name]) for name in pair] == [1, 1]
    assert all(one.elapsed > 0 for (one,) in taken.values())


def test_an_import_that_fails_is_no_figure(packages: Path, tmp_path: Path) -> None:
    pair = import_time.make_pair(packages, tmp_path)
    with pytest.raises(subprocess.CalledProcessError):
        import_time.imported(pair["trimmed"], "import brick.none")


@pytest.mark.parametrize(("seconds", "ok"), [(1.0, True), (1.2, False)])
def test_the_bar_is_the_median_of_the_ratios_of_the_rounds(seconds: float, ok: bool) -> None:
    trimmed = [Taken(seconds, 9.0), Taken(10 * seconds, 9.0), Taken(50.0, 9.0)]
    untrimmed = [Taken(1.0, 9.0), Taken(10.0, 9.0), Taken(1.0, 9.0)]
    bar = import_time.report({"untrimmed": untrimmed, "trimmed": trimmed}, "import brick")["bars"]
    assert bar == {"trimmed / untrimmed": {"value": seconds, "bound": 1.05, "ok": ok}}
