"""Who may use an output folder: the same run with the same inputs, and one process at a time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.train.loop.conftest import cut_back, exact, go, read, reseal, rewrite
from train.config import RunConfig
from train.errors import EXIT_CONFIG, EXIT_DATA, UserError


def test_a_run_that_left_no_checkpoint_begins_again(
    recipe: dict[str, Any], unfinished: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(unfinished / "checkpoints")
    go(recipe)
    assert "it begins again at step 1" in capsys.readouterr().out
    assert exact(unfinished) == exact(whole)


def test_a_finished_run_is_never_gone_on_with(recipe: dict[str, Any], unfinished: Path) -> None:
    rewrite(unfinished / "run.json", status="finished")
    with pytest.raises(UserError, match="is not empty .*: a finished run") as caught:
        go(recipe)
    assert caught.value.exit_code == EXIT_CONFIG


@pytest.mark.parametrize("text", ["", "{", "[]", '{"status": "odd"}'])
def test_a_folder_that_does_not_say_what_it_holds_is_refused(
    recipe: dict[str, Any], unfinished: Path, text: str
) -> None:
    (unfinished / "run.json").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="is not empty"):
        go(recipe)


def test_never_refuses_an_unfinished_run(recipe: dict[str, Any], unfinished: Path) -> None:
    with pytest.raises(UserError, match="is not empty .*: an unfinished run, and resume is never"):
        go(recipe, resume="never")


def test_another_recipe_is_refused_with_all_its_differences(recipe: dict[str, Any], unfinished: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in unfinished.rglob("*")}
    with pytest.raises(UserError) as caught:
        go(recipe, learning_rate=1e-3, lora={"r": 4}, eval_data=recipe["data"], max_steps=5)
    assert caught.value.exit_code == EXIT_CONFIG
    assert sorted(caught.value.message.splitlines()) == [
        f"--output {unfinished}: holds an unfinished run with {line}"
        for line in (
            "eval_data: none there, some here",
            "learning_rate: 0.01 there, 0.001 here",
            "lora.r: 8 there, 4 here",
            "max_steps: 4 there, 5 here",
        )
    ]
    assert {path: path.stat().st_mtime_ns for path in unfinished.rglob("*")} == before


def test_another_adapter_is_refused(recipe: dict[str, Any], unfinished: Path) -> None:
    with pytest.raises(UserError, match="adapter: 'lora' there, 'oft' here"):
        go(recipe, adapter="oft")


def test_a_field_that_the_run_did_not_know_yet_had_its_default(
    recipe: dict[str, Any], unfinished: Path
) -> None:
    from train.loop.claim import differences

    written = read(unfinished / "run.json")["recipe"]
    del written["seed"], written["lora"]["r"]
    assert differences(written, RunConfig.model_validate(recipe)) == []
    assert differences(written, RunConfig.model_validate(recipe | {"seed": 1})) == ["seed: 42 there, 1 here"]


def test_fields_that_change_no_number_may_change_and_places_too(
    recipe: dict[str, Any], unfinished: Path, tmp_path: Path
) -> None:
    moved = {
        "model": Path(shutil.copytree(recipe["model"], tmp_path / "model")),
        "data": Path(shutil.copy(recipe["data"], tmp_path / "elsewhere.jsonl")),
        "output": unfinished.rename(tmp_path / "moved"),
    }
    go(recipe, **moved, oft={"oft_block_size": 16}, save_steps=1, save_total_limit=1)
    assert [path.name for path in (tmp_path / "moved" / "checkpoints").iterdir()] == ["step-4"]


def test_other_inputs_are_refused_by_name(recipe: dict[str, Any], unfinished: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(recipe["model"], tmp_path / "model"))
    rewrite(model / "generation_config.json", max_length=7)
    (model / "extra.safetensors").write_bytes(b"")
    text = recipe["data"].read_text("utf-8")
    recipe["data"].write_text("\n".join(text.split("\n")[1:]), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        go(recipe, model=model)
    assert caught.value.exit_code == EXIT_CONFIG
    assert caught.value.message.splitlines() == [
        f"{recipe['data']}: is not the data of the run so far",
        f"{model}/extra.safetensors: is not that of the run so far",
        f"{model}/generation_config.json: is not that of the run so far",
    ]


def test_large_weights_of_one_size_are_told_apart_by_pieces_of_them(
    recipe: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from train.checks.tiny import make_tiny
    from train.loop import resume

    monkeypatch.setattr(resume, "LARGE_BYTES", 10)
    make_tiny(tmp_path / "other", seed=1)
    found = [
        resume.identify(RunConfig.model_validate(recipe | {"model": model}), [])["model"]
        for model in (recipe["model"], recipe["model"], tmp_path / "other")
    ]
    size = (recipe["model"] / "model.safetensors").stat().st_size
    weights = [files["model.safetensors"] for files in found]
    assert all(text.startswith(f"{size} bytes, 64 pieces sha256:") for text in weights)
    assert weights[0] == weights[1] != weights[2]
    assert found[0]["config.json"] == found[2]["config.json"]


def test_an_adapter_of_other_settings_is_refused_but_for_the_form_of_the_rotation(
    recipe: dict[str, Any], tmp_path: Path, without_drawing: None
) -> None:
    """A series may have gone over to the exact map while the run trained."""
    recipe |= {"adapter": "oft", "oft": {"cayley": "series"}, "max_steps": 2}
    go(recipe, output=tmp_path / "first", save_steps=1)
    folder = cut_back(tmp_path / "first", recipe["output"], 1) / "checkpoints" / "step-1"
    config = read(folder / "adapter_config.json")
    reseal(folder, "adapter_config.json", json.dumps(config | {"oft_block_size": 16, "module_dropout": 0.5}))
    with pytest.raises(UserError, match="has module_dropout 0.5, the recipe attaches 0.0") as caught:
        go(recipe)
    assert "has oft_block_size 16, the recipe attaches 32" in caught.value.message
    reseal(folder, "adapter_config.json", json.dumps(config | {"use_cayley_neumann": False}))
    go(recipe)
    assert read(recipe["output"] / "run.json")["status"] == "finished"


def test_an_adapter_with_a_missing_tensor_is_refused(recipe: dict[str, Any], unfinished: Path) -> None:
    from safetensors.torch import load_file, save

    folder = unfinished / "checkpoints" / "step-2"
    tensors = load_file(folder / "adapter_model.safetensors")
    name, _ = tensors.popitem()
    reseal(folder, "adapter_model.safetensors", save(tensors))
    layer = name.removesuffix(".weight")
    with pytest.raises(UserError, match=f"missing or too many: {layer}"):
        go(recipe)


def test_lost_lines_of_metrics_are_an_error(recipe: dict[str, Any], unfinished: Path) -> None:
    path = unfinished / "metrics.jsonl"
    lines = path.read_text("utf-8").splitlines(keepends=True)
    path.write_text(lines[1], encoding="utf-8")
    with pytest.raises(UserError, match="holds 1 lines up to step 2, 2 were written"):
        go(recipe)
    assert path.read_text("utf-8") == lines[1]


def test_two_processes_never_share_an_output_folder(recipe: dict[str, Any]) -> None:
    from train.loop.claim import held

    with held(recipe["output"]), pytest.raises(UserError, match="another process is running there") as caught:
        go(recipe)
    assert caught.value.exit_code == EXIT_CONFIG
    with held(recipe["output"]):  # what refused has let go of it
        pass


def test_changed_versions_and_devices_are_said() -> None:
    from train.loop.checkpoint import Checkpoint
    from train.loop.resume import change_lines

    then = {"versions": {"torch": "1", "peft": "1"}, "device": {"device": "cuda", "precision": "bf16"}}
    now = {"versions": {"torch": "2", "peft": "1"}, "device": {"device": "cpu", "precision": "bf16"}}
    lines = change_lines(Checkpoint(Path(), then), now)
    assert lines == [
        "note: torch is 2, it was 1: numbers may differ from here on",
        "note: device is cpu, it was cuda: numbers may differ from here on",
    ]
    assert change_lines(None, now) == []


def test_other_weights_and_other_names_of_evaluation_sets_make_another_run(recipe: dict[str, Any]) -> None:
    from train.loop.claim import differences

    def config(**fields: Any) -> RunConfig:
        return RunConfig.model_validate(recipe | fields)

    def lines(there: RunConfig, here: RunConfig) -> list[str]:
        return differences(there.model_dump(mode="json"), here)

    two = config(data=["a", {"path": "b", "weight": 2}])
    assert lines(two, config(data=["c", {"path": "d", "weight": 2}], sample_cache="off")) == []
    assert lines(two, config(data=["a", "b"])) == ["data: weights 1.0, 2.0 there, weights 1.0, 1.0 here"]
    assert lines(config(), two) == ["data: some there, weights 1.0, 2.0 here"]
    named = config(eval_data={"one": "a", "two": "b"})
    assert lines(named, config(eval_data={"one": "c", "two": "d"})) == []
    assert lines(named, config(eval_data={"one": "a", "three": "b"})) == [
        "eval_data.three: none there, some here",
        "eval_data.two: some there, none here",
    ]


def test_another_source_is_refused_by_its_own_name(
    recipe: dict[str, Any], tmp_path: Path, without_drawing: None
) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text('{"instruction": "a", "output": "b"}\n' * 2, encoding="utf-8")
    recipe |= {"data": [recipe["data"], {"path": other, "weight": 1.5}], "max_steps": 2}
    go(recipe, output=tmp_path / "first", save_steps=1)
    cut_back(tmp_path / "first", recipe["output"], 1)
    text = other.read_text("utf-8")
    other.write_text(text.replace("b", "c"), encoding="utf-8")
    with pytest.raises(UserError, match=f"{other}: is not the data of the run so far"):
        go(recipe)
    other.write_text(text, encoding="utf-8")
    go(recipe)
    assert exact(recipe["output"]) == exact(tmp_path / "first")


def test_a_file_that_two_sources_hold_is_refused(recipe: dict[str, Any]) -> None:
    from train.loop.preflight import check_places

    data = recipe["data"]
    with pytest.raises(
        UserError, match=f"{data}: is read twice, by {data} and {data.parent}/\\*.jsonl"
    ) as caught:
        check_places(RunConfig.model_validate(recipe | {"data": [data, data.parent / "*.jsonl"]}))
    assert caught.value.exit_code == EXIT_DATA
    check_places(RunConfig.model_validate(recipe | {"data": [data], "eval_data": {"same": data}}))


def test_every_source_and_set_that_cannot_be_read_is_named_at_once(
    recipe: dict[str, Any], tmp_path: Path
) -> None:
    from train.loop.preflight import check_places

    with pytest.raises(UserError) as caught:
        check_places(
            RunConfig.model_validate(
                recipe
                | {
                    "data": [tmp_path / "x", recipe["data"], tmp_path / "y"],
                    "eval_data": {"z": tmp_path / "z"},
                }
            )
        )
    assert [line.split(":")[0] for line in caught.value.message.splitlines()] == [
        str(tmp_path / name) for name in "xyz"
    ]
