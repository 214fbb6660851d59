"""Variants: data in the spec alone, each a whole spec, with faults told where they were written."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from build_command import ROOT, BuildCommand
from yaml.constructor import SafeConstructor

from images.errors import UserError
from images.specfile import BACKENDS, find_spec, load_specs, read_spec
from images.variants import overlay

Damaged = Callable[..., Path]
OTHER = "variants:\n  thin:\n    title: Thin CPU\n    python:\n      version: '3.12'\n\nsources:"


def faults_of(path: Path) -> list[str]:
    return [str(fault) for fault in read_spec(path)[1]]


def the_fault(path: Path) -> str:
    (fault,) = faults_of(path)
    return fault


def with_variant(damaged: Damaged, variants: str = OTHER, main: str = "aliases: []\nvariant: full") -> Path:
    return damaged(("aliases: []", main), ("sources:", variants))


def test_a_variant_has_its_own_keys_and_for_the_rest_those_of_the_main_part(damaged: Damaged) -> None:
    (full, thin), faults = read_spec(with_variant(damaged))
    assert faults == []
    assert (full.variant, full.title, full.python.version) == ("full", "CPU", "3.11")
    assert (thin.variant, thin.title, thin.python.version) == ("thin", "Thin CPU", "3.12")
    assert thin.python.covers == full.python.covers
    assert thin.torch == full.torch


def test_mappings_are_joined_lists_replaced_and_an_empty_mapping_empties() -> None:
    main = "{a: {b: 1, c: 2}, d: [1, 2], e: {f: 1}, g: 3}"
    own = "{a: {c: 4}, d: [5], e: {}, h: null}"
    node = overlay(yaml.compose(main), yaml.compose(own))
    assert SafeConstructor().construct_document(node) == {
        "a": {"b": 1, "c": 4},
        "d": [5],
        "e": {},
        "g": 3,
        "h": None,
    }


def test_the_default_variant_has_its_backend_s_name_and_the_others_add_theirs() -> None:
    specs = load_specs()
    assert {name: (spec.name, spec.variant) for name, spec in specs.items()} == {
        "ascend": ("ascend", "910b"),
        "ascend-a3": ("ascend", "a3"),
        "cpu": ("cpu", None),
        "cuda": ("cuda", "cuda12"),
        "cuda13": ("cuda", "cuda13"),
        "hygon": ("hygon", "pytorch"),
        "hygon-training": ("hygon", "training"),
    }
    assert specs["cuda13"].selection == "--backend cuda --variant cuda13"
    assert specs["cuda"].selection == "--backend cuda"


@pytest.mark.parametrize("backend", ["cuda", "nvidia"])
def test_a_variant_is_found_by_name_and_the_default_one_without(backend: str) -> None:
    specs = load_specs()
    assert find_spec(backend, specs).image == "cuda"
    assert find_spec(backend, specs, "cuda12").image == "cuda"
    assert find_spec(backend, specs, "cuda13").image == "cuda13"


def test_an_unknown_variant_gets_the_known_ones_and_a_suggestion(build_py: BuildCommand) -> None:
    done = build_py("--backend=ascend", "--variant=910")
    assert done.returncode == 64
    assert done.stderr == (
        "error: --variant: unknown variant '910' of ascend\nhint: did you mean '910b'? known: 910b, a3\n"
    )


def test_a_backend_without_variants_says_so() -> None:
    with pytest.raises(UserError, match="cpu has no variants"):
        find_spec("cpu", load_specs(), "thin")


def test_a_variant_needs_its_backend_s_name(build_py: BuildCommand) -> None:
    done = build_py("render", "--check", "--variant=a3")
    assert (done.returncode, done.stderr.splitlines()[-1]) == (64, "hint: add --backend NAME")


def test_a_fault_in_a_variant_has_its_line_there(damaged: Damaged) -> None:
    path = with_variant(damaged, OTHER.replace("version: '3.12'", "version: 3.12"))
    line = path.read_text(encoding="utf-8").splitlines().index("      version: 3.12") + 1
    assert the_fault(path).startswith(f"cpu.yaml:{line}: python.version: YAML reads 3.12 as the number")


def test_a_fault_in_the_main_part_is_told_once(damaged: Damaged) -> None:
    path = with_variant(damaged)
    path.write_text(
        path.read_text(encoding="utf-8").replace("shm_size: 2g", "shm_size: big"), encoding="utf-8"
    )
    assert "runtime.shm_size: is 'big'" in the_fault(path)


@pytest.mark.parametrize(
    ("variants", "main", "told"),
    [
        (OTHER, "aliases: []", "variant: is missing where there are other variants"),
        (
            OTHER.replace("thin:", "full:"),
            "aliases: []\nvariant: full",
            "variants.full: is the name of the main part",
        ),
        (OTHER.replace("thin:", "Thin:"), "aliases: []\nvariant: full", "variants.Thin: is no name"),
        (
            OTHER.replace("title: Thin CPU", "aliases: [t]"),
            "aliases: []\nvariant: full",
            "variants.thin.aliases: cannot differ",
        ),
        ("variants: [thin]\n\nsources:", "aliases: []\nvariant: full", "variants: is not a mapping"),
        (
            "variants:\n  thin: CPU\n\nsources:",
            "aliases: []\nvariant: full",
            "variants.thin: is not a mapping of keys",
        ),
        (
            OTHER,
            "aliases: []\nvariant: full\ndefault_variant: thin",
            "default_variant: is not a key of a file",
        ),
        (
            OTHER.replace("title: Thin", "titel: Thin"),
            "aliases: []\nvariant: full",
            "titel: unknown key: did you mean 'title'?",
        ),
    ],
)
def test_what_is_wrong_with_variants_is_named(damaged: Damaged, variants: str, main: str, told: str) -> None:
    assert told in the_fault(with_variant(damaged, variants, main))


def test_two_images_cannot_share_a_name(damaged: Damaged, tmp_path: Path) -> None:
    with_variant(damaged, OTHER.replace("thin:", "cpux:"))
    damaged(("aliases: [nvidia]", "aliases: [cpux]"), name="cuda")
    with pytest.raises(UserError, match=r"variants.cpux|'cpux' is taken"):
        load_specs(tmp_path)


def test_a_new_variant_is_data_alone(tree_build_py: BuildCommand) -> None:
    """No file but the spec names a variant: a new one is listed, rendered and told how to get its lock."""
    path = tree_build_py.tree / "images/backends/ascend.yaml"
    text = path.read_text(encoding="utf-8")
    new = "variants:\n  950:\n    base:\n      reference: quay.io/ascend/cann:9.1.0-950-ubuntu22.04-py3.11\n"
    path.write_text(text.replace("variants:\n", new, 1), encoding="utf-8")
    rows = json.loads(tree_build_py("list", "--json").stdout)
    assert [row["image"] for row in rows if row["backend"] == "ascend"] == [
        "ascend",
        "ascend-950",
        "ascend-a3",
    ]
    done = tree_build_py("--backend=npu", "--variant=950", "--render-only")
    assert done.returncode == 0, done.stderr
    text = (tree_build_py.tree / "images/rendered/ascend-950/Dockerfile").read_text(encoding="utf-8")
    assert "ARG BASE_IMAGE=quay.io/ascend/cann:9.1.0-950-ubuntu22.04-py3.11\n" in text
    assert 'isotune.variant="950"' in text
    built = tree_build_py("--backend=npu", "--variant=950")
    assert built.returncode == 78
    assert "hint: python build.py lock --backend ascend --variant 950" in built.stderr


def test_files_of_a_variant_that_is_gone_are_found_and_removed(tree_build_py: BuildCommand) -> None:
    folder = tree_build_py.tree / "images/rendered/cuda11"
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM scratch\n", encoding="utf-8")
    done = tree_build_py("render", "--check")
    assert done.returncode == 1
    assert "--- images/rendered/cuda11/Dockerfile" in done.stdout
    assert tree_build_py("render", "--check", "--backend=cuda").returncode == 0
    assert tree_build_py("render").stdout.endswith(" 1 changed\n")
    assert not folder.exists()


def test_every_variant_names_itself_in_its_build_info_and_its_label() -> None:
    for image, spec in load_specs().items():
        folder = ROOT / "images/rendered" / image
        info = json.loads((folder / "build-info.json").read_text(encoding="utf-8"))
        assert (info["backend"], info["variant"]) == (spec.name, spec.variant)
        label = f'isotune.variant="{spec.variant}"'
        assert (label in (folder / "Dockerfile").read_text(encoding="utf-8")) == (spec.variant is not None)


def test_the_wide_variant_takes_every_driver_that_its_libraries_take() -> None:
    """The base's check would refuse drivers before 570: it is off, the minimum is that of the libraries."""
    specs = load_specs()
    assert (specs["cuda"].driver.minimum, specs["cuda13"].driver.minimum) == ("525.60.13", "580")
    assert specs["cuda"].environment["NVIDIA_DISABLE_REQUIRE"] == "1"


def test_specs_lie_where_they_are_looked_for() -> None:
    assert sorted(path.stem for path in BACKENDS.glob("*.yaml")) == ["ascend", "cpu", "cuda", "hygon"]
