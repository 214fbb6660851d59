"""Models of the hub: found in the cache without a connection, fetched where that is allowed, pinned."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_hub import FIRST, ID, SECOND, FakeHub, fill_cache, served

from train import hub
from train.cli import call
from train.config import RunConfig
from train.errors import EXIT_CONFIG, EXIT_UNAVAILABLE, UserError
from train.loop.claim import differences
from train.loop.preflight import check_places
from train.loop.run import run
from train.results.describe import describe


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, here and in processes started from here."""
    from huggingface_hub import constants

    folder = tmp_path / "cache"
    monkeypatch.setenv("HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    return folder


@pytest.fixture
def fake_hub(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    folder = Path(shutil.copytree(tiny, tmp_path / "repository"))
    (folder / "onnx").mkdir()
    (folder / "onnx" / "config.json").write_text("{}", encoding="utf-8")
    (folder / "pytorch_model.bin").write_bytes(b"x")
    with served(folder) as found:
        monkeypatch.setenv("HF_ENDPOINT", found.url)
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # as in an image
        yield found


@pytest.fixture
def no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*arguments: Any, **named: Any) -> Any:
        raise AssertionError(f"tried to connect: {arguments[-1]}")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Qwen/Qwen2.5-0.5B-Instruct", ("Qwen/Qwen2.5-0.5B-Instruct", "main")),
        ("Qwen/Qwen3-8B@v1.0", ("Qwen/Qwen3-8B", "v1.0")),
        (f"Qwen/Qwen3-8B@{FIRST}", ("Qwen/Qwen3-8B", FIRST)),
        ("Qwen/Qwen3-8B@refs/pr/3", ("Qwen/Qwen3-8B", "refs/pr/3")),
        ("/models/qwen", None),
        ("qwen", None),
        ("a/b/c", None),
        ("../qwen/x", None),
    ],
)
def test_what_an_id_is(text: str, expected: tuple[str, str] | None) -> None:
    found = hub.parse(Path(text))
    assert (found and (found.id, found.revision)) == expected


def test_a_folder_of_that_name_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "Qwen" / "Tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert hub.resolve(Path(ID), allow_network=True) == Path(ID)


def test_a_run_on_a_cached_model_connects_to_nothing_and_records_the_commit(
    tiny: Path, cache: Path, recipe: dict[str, Any], no_connection: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.loop import run as module

    monkeypatch.setattr(module, "draw_loss", lambda *_: None)
    snapshot = fill_cache(cache, tiny)
    config = RunConfig.model_validate({**recipe, "model": ID, "max_steps": 1})
    check_places(config)
    run(config)
    written = json.loads((recipe["output"] / "run.json").read_text("utf-8"))
    assert written["recipe"]["model"] == f"{ID}@main"
    said = {"folder": str(snapshot), "id": ID, "revision": "main", "commit": FIRST}
    assert written["model"].items() >= said.items()
    about = json.loads((recipe["output"] / "adapter" / "isotune.json").read_text("utf-8"))
    assert about["base"]["folder"] == f"{ID}@{FIRST}"


@pytest.mark.parametrize("text", [ID, f"{ID}@{FIRST}", f"{ID}@v1"])
def test_without_cache_and_network_the_error_says_the_three_cures(
    cache: Path, recipe: dict[str, Any], no_connection: None, text: str
) -> None:
    config = RunConfig.model_validate({**recipe, "model": text})
    with pytest.raises(UserError, match="as a model of the hub not in the cache") as caught:
        check_places(config)
    assert caught.value.exit_code == EXIT_CONFIG
    for cure in ("-v /path/to/model:/model:ro", "--set allow_network=true", "HF_ENDPOINT=https://MIRROR"):
        assert cure in caught.value.hint
    with pytest.raises(UserError) as other:
        hub.resolve(Path(text), allow_network=False)
    assert "or allow the network: --allow-network" in other.value.hint


@pytest.mark.parametrize("name", ["qwen-tiny", "models/a/b", "no/such--id"])
def test_a_name_that_is_neither_folder_nor_id_says_what_is_due(
    cache: Path, recipe: dict[str, Any], name: str
) -> None:
    with pytest.raises(UserError, match=f"--model {name}.*: is no (folder|id)") as caught:
        check_places(RunConfig.model_validate({**recipe, "model": name}))
    assert "OWNER/NAME@REVISION" in caught.value.hint


def test_where_it_is_allowed_what_is_needed_is_fetched_once(
    cache: Path, fake_hub: FakeHub, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit(3)", encoding="utf-8")  # of the user's own
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    folder = hub.resolve(Path(ID), allow_network=True)
    assert folder.name == FIRST and folder.is_relative_to(cache)
    assert {path.name for path in folder.iterdir()} == {path.name for path in tiny.iterdir()}
    assert all((folder / path.name).read_bytes() == path.read_bytes() for path in tiny.iterdir())
    asked = len(fake_hub.asked)
    assert hub.resolve(Path(f"{ID}@{FIRST}"), allow_network=True) == folder
    assert hub.resolve(Path(ID), allow_network=False) == folder
    assert len(fake_hub.asked) == asked
    fake_hub.head = SECOND
    assert hub.resolve(Path(ID), allow_network=True).name == SECOND


FAULTS: dict[str, tuple[str, dict[str, Any], str, int]] = {
    "another id": ("Qwen/Other", {}, "has no such model, or it is private", EXIT_CONFIG),
    "another revision": (f"{ID}@v9", {}, "has no such revision", EXIT_CONFIG),
    "gated": (ID, {"gated": True}, "is gated", EXIT_CONFIG),
    "ill": (ID, {"broken": True}, "answers: .*500", EXIT_UNAVAILABLE),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_hubs_refusals_are_told_apart(cache: Path, fake_hub: FakeHub, fault: str) -> None:
    text, state, message, code = FAULTS[fault]
    for name, value in state.items():
        setattr(fake_hub, name, value)
    with pytest.raises(UserError, match=f"--model {text}.*: .*{message}") as caught:
        hub.resolve(Path(text), allow_network=True)
    assert caught.value.exit_code == code and caught.value.hint


def test_a_hub_that_is_not_reached_is_said_and_the_cache_not_taken_in_silence(
    cache: Path, fake_hub: FakeHub, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_cache(cache, tiny)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"http://127.0.0.1:9 was not reached") as caught:
        hub.resolve(Path(ID), allow_network=True)
    assert caught.value.exit_code == EXIT_UNAVAILABLE
    assert f"its cached commit {FIRST} is taken" in caught.value.hint
    assert "HF_ENDPOINT=https://MIRROR" in caught.value.hint


def test_a_cache_that_cannot_be_written_is_named(fake_hub: FakeHub, tmp_path: Path, cache: Path) -> None:
    cache.write_text("a file", encoding="utf-8")
    with pytest.raises(UserError, match=r"cache") as caught:
        hub.resolve(Path(ID), allow_network=True)
    assert "HF_HOME" in caught.value.hint


def test_a_run_that_goes_on_keeps_its_commit_where_the_branch_has_moved(
    cache: Path, tiny: Path, recipe: dict[str, Any]
) -> None:
    first = fill_cache(cache, tiny)
    second = fill_cache(cache, tiny, SECOND)
    config = RunConfig.model_validate({**recipe, "model": ID})
    assert hub.resolved(config).model == second
    assert not differences(hub.resolved(config).as_asked() | {"allow_network": True}, config)
    recipe["output"].mkdir()
    written = {"status": "stopped", "model": {"id": ID, "revision": "main", "commit": FIRST}}
    (recipe["output"] / "run.json").write_text(json.dumps(written), encoding="utf-8")
    assert hub.resolved(config).model == first
    for other in ({"status": "finished"}, {"model": {"id": ID, "revision": "v1", "commit": FIRST}}):
        (recipe["output"] / "run.json").write_text(json.dumps(written | other), encoding="utf-8")
        assert hub.resolved(config).model == second


def test_info_says_what_a_cached_model_is(cache: Path, tiny: Path, no_connection: None) -> None:
    fill_cache(cache, tiny)
    facts = describe(hub.cached(Path(ID)))["model"]
    assert facts["name"] == f"{ID}@{FIRST}" and facts["family"] == "Qwen2, Qwen2.5"
    with pytest.raises(UserError, match="out/run: does not exist"):
        describe(hub.cached(Path("out/run")))


def test_the_commands_take_an_id_and_stay_offline(
    cache: Path, few_rows: Path, fake_hub: FakeHub, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["eval", "--model", ID, "--data", str(few_rows), "--device", "cpu", "--json"]
    assert call(arguments) == EXIT_CONFIG
    assert "allow the network: --allow-network" in capsys.readouterr().err
    assert not fake_hub.asked
    assert call([*arguments, "--allow-network"]) == 0
    assert fake_hub.asked and json.loads(capsys.readouterr().out)["model"].endswith(FIRST)
