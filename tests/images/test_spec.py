"""Specs: the four real ones load, and each kind of fault is named with its place and cure."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from images.errors import EXIT_CONFIG, UserError
from images.spec import BackendSpec
from images.specfile import find_spec, load_specs, read_spec

Damaged = Callable[..., Path]


def faults_of(path: Path) -> list[str]:
    return [str(fault) for fault in read_spec(path)[1]]


def the_fault(path: Path) -> str:
    (fault,) = faults_of(path)
    return fault


def test_the_four_backends_load() -> None:
    assert sorted({spec.name for spec in load_specs().values()}) == ["ascend", "cpu", "cuda", "hygon"]


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("nvidia", "cuda"),
        ("cann", "ascend"),
        ("npu", "ascend"),
        ("dtk", "hygon"),
        ("dcu", "hygon"),
        ("hcu", "hygon"),
    ],
)
def test_an_alias_finds_its_backend(alias: str, name: str) -> None:
    assert find_spec(alias, load_specs()).name == name


def test_an_unknown_backend_gets_a_suggestion() -> None:
    with pytest.raises(UserError) as caught:
        find_spec("asend", load_specs())
    assert "did you mean 'ascend'?" in caught.value.hint
    assert caught.value.exit_code == 64


def test_an_unknown_key_gets_a_suggestion_and_its_line(damaged: Damaged) -> None:
    path = damaged(("  process_group: gloo\n", "  process_group: gloo\n  pined_memory: true\n"))
    line = path.read_text(encoding="utf-8").splitlines().index("  pined_memory: true") + 1
    assert (
        the_fault(path)
        == f"cpu.yaml:{line}: device_policy.pined_memory: unknown key: did you mean 'pinned_memory'?"
    )


def test_a_version_that_yaml_reads_as_a_number_is_shown_as_it_was_written(damaged: Damaged) -> None:
    found = the_fault(damaged(('version: "3.11"', "version: 3.10")))
    assert "python.version: YAML reads 3.10 as the number 3.1" in found
    assert 'write "3.10" in quotes' in found


def test_a_word_that_yaml_reads_as_true_is_refused(damaged: Damaged) -> None:
    found = the_fault(damaged(("title: CPU", "title: on")))
    assert 'title: YAML reads on as the truth value True, not as text: write "on" in quotes' in found


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("cpu", "pinned_memory: false", 'pinned_memory: "false"'),
        ("cuda", "initial: 65536", 'initial: "65536"'),
    ],
)
def test_text_is_neither_a_truth_value_nor_a_number(damaged: Damaged, name: str, old: str, new: str) -> None:
    assert f"is {new.partition(': ')[2].replace(chr(34), chr(39))}" in the_fault(
        damaged((old, new), name=name)
    )


def test_a_missing_key_says_what_belongs_there(damaged: Damaged) -> None:
    found = the_fault(damaged(("  shm_size: 2g\n", "")))
    assert "runtime.shm_size: is missing: add `shm_size:` (a size such as 16g)" in found


def test_a_wrong_choice_lists_the_choices(damaged: Damaged) -> None:
    found = the_fault(damaged(("precision: [fp32]", "precision: [fp31]")))
    assert "device_policy.precision[0]: is 'fp31'" in found
    assert "did you mean 'fp32'?" in found


@pytest.mark.parametrize(
    "digest", ["sha256:a36c24", "latest", "a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b"]
)
def test_a_digest_is_a_whole_sha256_or_unresolved(damaged: Damaged, digest: str) -> None:
    whole = "sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b"
    assert "expected sha256:<64 hex digits>, or `unresolved`" in the_fault(damaged((whole, digest)))


def test_an_unresolved_digest_is_a_value(damaged: Damaged) -> None:
    whole = "sha256:a36c24f9cbdf4fd0f52d67f0823eeac19c2028c637cecc392d97f980d4fec56b"
    assert faults_of(damaged((whole, "unresolved"))) == []


def test_a_key_given_twice_names_both_lines(damaged: Damaged) -> None:
    path = damaged(("title: CPU\n", "title: CPU\ntitle: Plain CPU\n"))
    assert "title: is given twice, first in line 4: keep one of them" in the_fault(path)


def test_broken_yaml_names_the_line(damaged: Damaged) -> None:
    found = the_fault(damaged(("title: CPU\n", "title: CPU: plain\n")))
    assert found.startswith("cpu.yaml:4: is not YAML: mapping values are not allowed")


def test_a_source_must_belong_to_a_field(damaged: Damaged) -> None:
    found = the_fault(damaged(("  base.reference:", "  base.refrence:")))
    assert "sources.base.refrence: is the source of a key that does not exist" in found


def test_the_image_s_python_is_one_that_the_lock_covers(damaged: Damaged) -> None:
    found = the_fault(damaged(('covers: ["3.10", "3.11", "3.12"]', 'covers: ["3.10", "3.12"]')))
    assert "python: covers ['3.10', '3.12'] lacks the image's own version '3.11'" in found


def test_provided_torch_is_listed_with_its_version(damaged: Damaged) -> None:
    path = damaged(("provided:\n  torch: 2.7.1+das.opt1.dtk2604", "provided:\n  torch: 2.7.1"), name="hygon")
    assert "`provided` must list torch '2.7.1+das.opt1.dtk2604', not '2.7.1'" in the_fault(path)


def test_the_file_is_named_after_its_backend(damaged: Damaged) -> None:
    path = damaged(("name: cpu", "name: gpu"))
    assert "name: is 'gpu' in cpu.yaml" in the_fault(path)


def test_all_faults_of_all_files_come_at_once(damaged: Damaged, tmp_path: Path) -> None:
    damaged(
        ("title: CPU", "titel: CPU"),
        ("shm_size: 2g", "shm_size: big"),
        ("  base.reference:", "  base.refrence:"),
    )
    damaged(('minimum: "580"', "minimum: 580"), name="cuda")
    with pytest.raises(UserError) as caught:
        load_specs(tmp_path)
    places = [line.split(": ")[1] for line in caught.value.message.splitlines()]
    assert sorted(places) == ["driver.minimum", "runtime.shm_size", "sources.base.refrence", "titel", "title"]
    assert caught.value.exit_code == EXIT_CONFIG


def test_two_backends_cannot_share_an_alias(damaged: Damaged, tmp_path: Path) -> None:
    damaged(("aliases: []", "aliases: [nvidia]"))
    damaged(name="cuda")
    with pytest.raises(UserError, match=r"'nvidia' is taken by cpu\.yaml"):
        load_specs(tmp_path)


def test_the_lock_depends_on_versions_and_not_on_the_runtime() -> None:
    spec = load_specs()["cuda"]
    moved = spec.model_copy(update={"title": "other", "runtime": load_specs()["cpu"].runtime})
    assert moved.lock_inputs() == spec.lock_inputs()
    newer = spec.model_copy(update={"torch": spec.torch.model_copy(update={"version": "2.11.0"})})
    assert newer.lock_inputs() != spec.lock_inputs()


def test_torch_may_have_another_version_per_architecture() -> None:
    assert load_specs()["ascend"].torch_versions() == {"2.10.0": ["aarch64"], "2.10.0+cpu": ["x86_64"]}


def test_a_spec_is_never_changed_in_place() -> None:
    spec: BackendSpec = load_specs()["cpu"]
    with pytest.raises(ValueError, match="frozen"):
        spec.name = "other"
