"""No process outlives the one that started it, even where that is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.train.loop.started import ranks_of, read_until, start, wait_for


@pytest.mark.slow
def test_a_start_that_is_killed_leaves_no_rank_and_no_folder_but_a_checkpoint(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    folder = tmp_path / "temporary"
    folder.mkdir()
    process = start(recipe, "max_steps=40000", TMPDIR=str(folder))
    read_until(process, "step 2/")
    pids = ranks_of(process).values()
    agents = {int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) for pid in pids}
    assert len(pids) == 2
    assert len(agents) == 1
    assert list(folder.glob("isotune-*"))
    process.kill()
    process.wait(timeout=10)
    wait_for(lambda: not any(_is_there(pid) for pid in (*pids, *agents)))
    wait_for(lambda: not list(folder.glob("isotune-*")), 5)
    assert list((recipe["output"] / "checkpoints").iterdir())


def _is_there(pid: int) -> bool:
    try:
        return b"launch_" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
