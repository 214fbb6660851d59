"""What does not go together is refused before anything is built, with the nearest set that does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from build_command import BuildCommand
from pydantic import TypeAdapter, ValidationError

from images.compatibility import Fact, Relation, clashes, load_table, spec_facts, stack_facts
from images.errors import EXIT_CONFIG
from images.specfile import load_specs, read_spec

Damaged = Callable[..., Path]


def faults_of(path: Path) -> list[str]:
    return [str(fault) for fault in read_spec(path)[1]]


def line_of(path: Path, text: str) -> int:
    return [line.strip() for line in path.read_text(encoding="utf-8").splitlines()].index(text) + 1


def test_a_plugin_that_does_not_match_torch_is_refused_with_the_one_that_does(damaged: Damaged) -> None:
    path = damaged(
        ("version: 2.10.0\n", "version: 2.11.0\n"), ("2.10.0+cpu\n", "2.11.0+cpu\n"), name="ascend"
    )
    first, second = faults_of(path)
    assert first.startswith(f"ascend.yaml:{line_of(path, 'version: 2.11.0')}: torch.version: is 2.11.0, but ")
    assert "torch-npu 2.10.0.post4 needs torch 2.10.0 (compatibility table of Ascend/pytorch" in first
    assert first.endswith("V): nearest consistent: torch-npu 2.11.0.post2, torch 2.11.0")
    assert "torch.by_architecture.x86_64: is 2.11.0+cpu, but torch-npu 2.10.0.post4 needs" in second


@pytest.mark.parametrize(
    ("name", "change", "place", "what", "cure"),
    [
        (
            "ascend",
            ("version: 2.10.0.post4", "version: 2.10.0.post5"),
            "plugin.version",
            "torch-npu 2.10.0.post5 has no row in the table of torch-npu, torch and CANN",
            "torch-npu 2.10.0.post6, torch 2.10.0",
        ),
        (
            "ascend",
            ("version: 9.1.0", "version: 8.3.RC1"),
            "toolkit.version",
            "is 8.3.RC1, but torch-npu 2.10.0.post4 needs cann >=8.5,<9.3",
            "torch-npu 2.10.0.post4, torch 2.10.0, cann 9.1.0",
        ),
        (
            "ascend",
            ('minimum: "25.2"', 'minimum: "25.0"'),
            "driver.minimum",
            "is 25.0, but cann 9.1.0 needs driver >=25.2,<=26.1.0",
            "cann 9.1.0, driver 25.2",
        ),
        (
            "cuda",
            ("version: 2.10.0", "version: 2.11.0"),
            "torch.build.cuda",
            "is 12.8, but torch 2.11.0 needs cuda 13.0",
            "torch 2.10.0, cuda 12.8",
        ),
        (
            "cuda",
            ("version: 2.10.0", "version: 2.10.1"),
            "torch.build.cuda",
            "torch 2.10.1 with cuda 12.8 has no row",
            "torch 2.10.0, cuda 12.8",
        ),
        (
            "cuda",
            ('minimum: "580"', 'minimum: "570"'),
            "driver.minimum",
            "is 570, but cuda 13.0 needs driver >=580",
            "driver 580",
        ),
        (
            "hygon",
            ("minimum: 6.3.30-V1.4.1a", "minimum: 6.3.16-V1.1.0a"),
            "driver.minimum",
            "is 6.3.16-V1.1.0a, but dtk 26.04 needs driver >=6.3.30-V1.4.1a",
            "dtk 26.04, driver 6.3.30-V1.4.1a",
        ),
        (
            "cpu",
            ('covers: ["3.10", ', 'covers: ["3.9", "3.10", '),
            "python.covers[0]",
            "is 3.9, but transformers 5.20.2 needs python >=3.10",
            "python 3.10",
        ),
    ],
)
def test_versions_that_do_not_go_together_are_refused(
    damaged: Damaged, name: str, change: tuple[str, str], place: str, what: str, cure: str
) -> None:
    found = [fault for fault in faults_of(damaged(change, name=name)) if what in fault]
    assert len(found) == 1, found
    assert f": {place}: " in found[0]
    assert found[0].endswith(f"nearest consistent: {cure}")


def test_an_old_torch_is_refused_for_every_reason_at_once(damaged: Damaged) -> None:
    path = damaged(
        ("version: 2.7.1+das.opt1.dtk2604", "version: 2.5.1+das.opt1.dtk2604"),
        ("torch: 2.7.1+das.opt1.dtk2604", "torch: 2.5.1+das.opt1.dtk2604"),
        name="hygon",
    )
    reasons = [fault.partition("(")[2].partition(")")[0] for fault in faults_of(path)]
    assert [reason.partition(" ")[0] for reason in reasons] == ["METADATA", "check_torch_load_is_safe"]


def with_stack(build: BuildCommand, *changes: tuple[str, str]) -> list[str]:
    """Change the shared stack; returns the errors of `list`."""
    path = build.tree / "images/stack/train.txt"
    text = path.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    done = build("list")
    assert (done.returncode, done.stdout) == (EXIT_CONFIG, "")
    return [line for line in done.stderr.splitlines() if line.startswith("error: images/stack")]


def test_transformers_newer_than_peft_allows_is_refused(tree_build_py: BuildCommand) -> None:
    """With the newest that fits every backend: 5.23.0 fits peft, but not the Python of one base."""
    (fault,) = with_stack(tree_build_py, ("transformers==5.20.2", "transformers==5.24.0"))
    assert fault.startswith(
        "error: images/stack/train.txt:5: peft: is 0.21.2, but transformers 5.24.0 needs peft >=0.22.0"
    )
    assert fault.endswith("nearest consistent: transformers 5.20.2")


def test_pyarrow_that_needs_a_newer_numpy_is_refused(tree_build_py: BuildCommand) -> None:
    (fault,) = with_stack(tree_build_py, ("pyarrow==24.0.0", "pyarrow==26.0.1"))
    assert "train.txt:11: numpy: is 1.26.4, but pyarrow 26.0.1 needs numpy >=2" in fault
    assert fault.endswith("nearest consistent: pyarrow 25.0.0")


def test_all_clashes_of_the_stack_come_at_once(tree_build_py: BuildCommand) -> None:
    faults = with_stack(
        tree_build_py, ("peft==0.21.2", "peft==0.17.0"), ("huggingface_hub==2.4.0", "huggingface_hub==1.0.0")
    )
    assert [fault.split(": ")[2] for fault in faults] == [
        "huggingface-hub",
        "peft",
        "peft",
        "huggingface-hub",
    ]


def test_the_committed_specs_and_stack_go_together() -> None:
    for spec in load_specs().values():
        facts = [*spec_facts(spec), *stack_facts()]
        assert clashes(facts) == []
        assert {"python", "torch", "transformers", "peft", "huggingface-hub"} <= {
            fact.component for fact in facts
        }


def test_what_is_not_known_contradicts_nothing() -> None:
    facts = spec_facts(load_specs()["hygon"])
    assert "cuda" not in {fact.component for fact in facts}
    assert clashes([]) == []


def test_the_table_says_where_each_row_is_from() -> None:
    table = load_table()
    assert sum(len(relation.rows) for relation in table) > 80
    assert all(relation.source and relation.confidence in "VPTI" for relation in table)
    kinds = {frozenset(relation.keep) for relation in table}
    assert {
        frozenset(("python", "torch", "cann", "torch-npu")),
        frozenset(("driver", "cann")),
        frozenset(("torch", "cuda")),
        frozenset(("cuda", "driver")),
        frozenset(("dtk", "driver")),
        frozenset(("peft", "transformers")),
        frozenset(("numpy", "pyarrow")),
    } <= kinds


RELATION = {
    "title": "a and b",
    "key": ["a"],
    "complete": True,
    "keep": ["b", "a"],
    "source": "here",
    "confidence": "I",
    "rows": [{"when": {"a": "1"}, "needs": {"b": "1"}}, {"when": {"a": "2"}, "needs": {"b": "2"}}],
}


def test_what_stands_first_in_keep_is_changed_last() -> None:
    facts = [Fact("a", "1", 1), Fact("b", "2", 2)]
    for keep, cure in ((["b", "a"], "a 2, b 2"), (["a", "b"], "a 1, b 1")):
        relation = TypeAdapter(Relation).validate_python({**RELATION, "keep": keep})
        (clash,) = clashes(facts, [relation])
        assert (clash.fact, clash.cure) == (facts[1], f"nearest consistent: {cure}")


def test_a_set_that_cannot_be_mended_by_the_table_says_so() -> None:
    relation = TypeAdapter(Relation).validate_python(
        {**RELATION, "rows": [{"when": {"a": "1"}, "needs": {"b": "<1"}}]}
    )
    (clash,) = clashes([Fact("a", "1", 1), Fact("b", "2", 2)], [relation])
    assert clash.cure.startswith("no consistent set is known: see images/backends/compatibility")


def test_a_set_that_only_moves_the_clash_is_not_offered() -> None:
    one, two = (
        TypeAdapter(Relation).validate_python(
            {
                **RELATION,
                "key": [name],
                "keep": ["b", name],
                "rows": [{"when": {name: "1"}, "needs": {"b": wanted}}],
            }
        )
        for name, wanted in (("a", "1"), ("c", "2"))
    )
    (clash,) = clashes([Fact("a", "1", 1), Fact("b", "2", 2), Fact("c", "1", 3)], [one, two])
    assert clash.what.startswith("is 2, but a 1 needs b 1")
    assert clash.cure.startswith("no consistent set is known")


@pytest.mark.parametrize(
    "change",
    [{"keep": ["a"]}, {"rows": [{"when": {"a": "latest"}, "needs": {"b": "1"}}]}, {"confidence": "X"}],
)
def test_a_broken_table_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Relation).validate_python({**RELATION, **change})
