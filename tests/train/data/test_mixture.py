"""Several sources with weights: whole repeats and a drawn fraction, the same in every process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train.data.mixture import draw, load_all, mix
from train.data.samples import Samples
from train.data.settings import WeightedPath
from train.data.template import Sample
from train.errors import EXIT_DATA, UserError


def part(name: str, num_rows: int) -> Any:
    """Rows of two samples each."""
    samples = [Sample([row], [row], f"{name}:{row + 1}") for row in range(num_rows) for _ in range(2)]
    records: Any = [f"{name} {row}" for row in range(num_rows)]
    return Samples(samples, records, None)  # type: ignore[arg-type]


def places(mixture: Any) -> list[str]:
    return [sample.place for sample in mixture.samples]


def test_one_source_of_weight_one_is_taken_as_it_is() -> None:
    only = part("a", 3)
    mixture = mix([WeightedPath(path=Path("a"))], [only], 1)
    assert mixture.samples is only.samples
    assert (mixture.records, mixture.notes) == (only.records, [])


def test_weights_repeat_rows_whole_and_draw_the_rest_without_repeats() -> None:
    sources = [WeightedPath(path=Path("a"), weight=2.5), WeightedPath(path=Path("b"), weight=0.5)]
    mixture = mix(sources, [part("a", 4), part("b", 10)], 7)
    found = places(mixture)
    counts = {place: found.count(place) // 2 for place in dict.fromkeys(found)}
    assert sorted(counts[f"a:{row}"] for row in range(1, 5)) == [2, 2, 3, 3]
    assert [count for place, count in counts.items() if place.startswith("b")] == [1] * 5
    assert found[::2] == found[1::2], "both samples of a row go together"
    assert mixture.records == [*part("a", 4).records, *part("b", 10).records]
    assert mixture.notes == [
        "mixture: a: 4 rows, weight 2.5: 10 an epoch",
        "mixture: b: 10 rows, weight 0.5: 5 an epoch",
        "mixture: 30 samples an epoch, drawn once by seed 7",
    ]


def test_a_fraction_is_drawn_by_the_seed_and_the_place_of_the_source() -> None:
    assert draw(100, 0.3, "1 0") == draw(100, 0.3, "1 0") != draw(100, 0.3, "2 0")
    assert draw(100, 0.3, "1 0") != draw(100, 0.3, "1 1")
    assert draw(7, 0.3, "1 0") == [0, 6], "written down: a resumed run may be another process and version"
    assert draw(5, 2, "1 0") == [0, 1, 2, 3, 4] * 2
    halves = [WeightedPath(path=Path(name), weight=0.5) for name in "ab"]
    found = places(mix(halves, [part("a", 40), part("b", 40)], 1))
    lines = [{place[2:] for place in found if place.startswith(name)} for name in "ab"]
    assert lines[0] != lines[1], "sources of equal rows do not draw in step"


def test_a_weight_that_leaves_nothing_is_an_error() -> None:
    sources = [WeightedPath(path=Path("a")), WeightedPath(path=Path("b"), weight=0.1)]
    with pytest.raises(UserError, match="b: weight 0.1 leaves none of its 3 rows") as caught:
        mix(sources, [part("a", 3), part("b", 3)], 1)
    assert caught.value.exit_code == EXIT_DATA


def test_faults_of_all_sources_are_told_at_once() -> None:
    def load(path: Path) -> Any:
        if path.name != "good":
            raise UserError(f"{path}:1: bad", "mend it", EXIT_DATA)

    with pytest.raises(UserError) as caught:
        load_all([Path("a"), Path("good"), Path("b")], load)
    assert (caught.value.message, caught.value.hint) == ("a:1: bad\nb:1: bad", "mend it")
    assert caught.value.exit_code == EXIT_DATA


def test_a_run_of_two_sources_says_the_mixture_and_records_each_hash(
    recipe: dict[str, Any],
    write_rows: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tests.train.loop.conftest import go, read
    from train.data.records import hash_file
    from train.loop import run

    monkeypatch.setattr(run, "draw_loss", lambda *_: None)
    other = write_rows(
        {"instruction": "a", "output": "b"}, {"instruction": "c", "output": "d"}, name="b.jsonl"
    )
    data = [str(recipe["data"]), {"path": str(other), "weight": 1.5}]
    go(recipe, data=data, eval_data={"one": recipe["data"], "two": other}, max_steps=1)
    assert "mixture: 19 samples an epoch, drawn once by seed 42" in capsys.readouterr().out
    written = read(recipe["output"] / "run.json")
    assert written["inputs"]["data"] == {str(path): hash_file(path) for path in (recipe["data"], other)}
    assert [one["path"] for one in written["data"]] == [str(recipe["data"]), str(other)] * 2
    assert written["recipe"]["data"][1] == {"path": str(other), "weight": 1.5}
