"""Check specs and the stack against the table of versions that go together; name the nearest set."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import AfterValidator, Field, TypeAdapter, model_validator

from images.spec import IMAGES, BackendSpec
from images.spec_types import Confidence, Name, Part
from images.version import closest, is_version, matches, public, terms

TABLE = IMAGES / "backends" / "compatibility" / "table.yaml"
STACK = IMAGES / "stack" / "train.txt"
KeyPath = tuple[str | int, ...]


def _range(text: str) -> str:
    terms(text)
    return text


Ranges = dict[Name, Annotated[str, AfterValidator(_range)]]
# Component -> its versions: several where architectures or Pythons differ.
Versions = dict[str, list[str]]


class Row(Part):
    when: Ranges = Field(min_length=1)
    needs: Ranges = Field(min_length=1)
    named: dict[Name, str] = Field(
        default={}, description="the pairing that a vendor names, of many compatible ones"
    )
    source: str | None = None
    confidence: Confidence | None = None


class Relation(Part):
    title: str
    key: list[Name] = Field(min_length=1)
    complete: bool = Field(description="true: a version of the key that has no row is refused")
    keep: list[Name] = Field(description="what the nearest consistent set changes last")
    source: str
    confidence: Confidence
    rows: list[Row]

    @model_validator(mode="after")
    def every_component_has_its_place(self) -> Relation:
        used = {name for row in self.rows for name in (*row.when, *row.needs)} | {*self.key}
        if used != set(self.keep):
            raise ValueError(f"{self.title}: keep {self.keep} is not what the rows are about: {sorted(used)}")
        return self


@dataclass(frozen=True)
class Fact:
    """A version in use. `where`: its key path in the spec, or its line in the stack's list."""

    component: str
    version: str
    where: KeyPath | int

    def __str__(self) -> str:
        return f"{self.component} {self.version}"


@dataclass(frozen=True)
class Clash:
    """A fact that contradicts a row; `cure` names the nearest consistent set."""

    fact: Fact
    what: str
    cure: str


@functools.cache
def load_table(path: Path = TABLE) -> tuple[Relation, ...]:
    """Return the table; raises pydantic's ValidationError if it is not one: it is ours, not the user's."""
    data = yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return tuple(TypeAdapter(list[Relation]).validate_python(data["relations"]))


def spec_facts(spec: BackendSpec) -> list[Fact]:
    """Return the versions that a spec uses, as far as it knows them."""
    found = [Fact("python", version, ("python", "covers", i)) for i, version in enumerate(spec.python.covers)]
    for version, machines in spec.torch_versions().items():
        own = [machine for machine in machines if machine in spec.torch.by_architecture]
        where: KeyPath = ("torch", "by_architecture", own[0]) if own else ("torch", "version")
        found.append(Fact("torch", version, where))
    found.append(Fact("cuda", spec.torch.build.cuda, ("torch", "build", "cuda")))
    if spec.plugin:
        found.append(Fact(spec.plugin.distribution, spec.plugin.version, ("plugin", "version")))
    if spec.toolkit:
        found.append(Fact(spec.toolkit.name, spec.toolkit.version, ("toolkit", "version")))
    found += [Fact("driver", getattr(spec.driver, end), ("driver", end)) for end in ("minimum", "maximum")]
    found += [
        Fact("driver", version, ("driver", "listed", i)) for i, version in enumerate(spec.driver.listed)
    ]
    return [fact for fact in found if is_version(fact.version)]


def stack_facts(path: Path = STACK) -> list[Fact]:
    """Return the pinned versions of the shared Python stack, each with its line."""
    lines = enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    pins = ((number, re.match(r"([\w.-]+)==([\w.+-]+)", line)) for number, line in lines)
    return [Fact(re.sub(r"[-_.]+", "-", pin[1]).lower(), pin[2], number) for number, pin in pins if pin]


def clashes(facts: Iterable[Fact], table: Iterable[Relation] | None = None) -> list[Clash]:
    """Return every contradiction between the facts, each with the nearest set that has fewer."""
    relations = tuple(load_table() if table is None else table)
    known = list(facts)
    versions: Versions = {}
    for fact in known:
        versions.setdefault(fact.component, []).append(fact.version)
    found = list(_contradictions(known, versions, relations))
    before = {item.key for item in found}
    result = {(item.fact, item.what): Clash(item.fact, item.what, "") for item in found}
    for item in found:
        cure = _nearest(item.relation, versions, relations, before)
        result[item.fact, item.what] = Clash(item.fact, item.what, cure)
    return list(result.values())


@dataclass(frozen=True)
class _Contradiction:
    relation: Relation
    fact: Fact
    what: str
    # What stays the same when only the versions change.
    key: tuple[str, str, str]


def _contradictions(
    facts: list[Fact], versions: Versions, relations: tuple[Relation, ...]
) -> Iterator[_Contradiction]:
    for relation in relations:
        rows = [row for row in relation.rows if _applies(row, versions)]
        for row in rows:
            for fact in facts:
                wanted = row.needs.get(fact.component)
                if wanted and not matches(fact.version, wanted):
                    what = _reason(relation, row, versions, fact)
                    yield _Contradiction(relation, fact, what, (relation.title, fact.component, wanted))
        if relation.complete and not rows and all(name in versions for name in relation.key):
            used = " with ".join(f"{name} {public(versions[name][0])}" for name in relation.key)
            fact = next(fact for fact in facts if fact.component == relation.key[-1])
            what = f"{used} has no row in the table of {relation.title}"
            yield _Contradiction(relation, fact, what, (relation.title, fact.component, "row"))


def _applies(row: Row, versions: Versions) -> bool:
    """Is a row about one of the versions in use, of each component that it is about?"""
    return all(any(matches(v, wanted) for v in versions.get(name, [])) for name, wanted in row.when.items())


def _reason(relation: Relation, row: Row, versions: Versions, fact: Fact) -> str:
    source = f"{row.source or relation.source}, {row.confidence or relation.confidence}"
    used = ", ".join(
        f"{name} {next(version for version in versions[name] if matches(version, wanted))}"
        for name, wanted in row.when.items()
    )
    who = f"{used} needs" if fact.component not in row.when else "what is needed is"
    return f"is {fact.version}, but {who} {fact.component} {row.needs[fact.component]} ({source})"


def _nearest(
    relation: Relation, versions: Versions, relations: tuple[Relation, ...], before: set[tuple[str, str, str]]
) -> str:
    """Say which row of the relation is reached with the fewest changes, and what it makes of the versions."""
    candidates = []
    for index, row in enumerate(relation.rows):
        changes = _changes(row, versions)
        after = _left(versions, changes, relations)
        if not changes or not after < before:
            continue
        # Changing what stands early in `keep` is worse.
        places = sorted(-relation.keep.index(name) for name in changes)
        other = sum(versions.get(name, [wanted])[0] != wanted for name, wanted in row.named.items())
        candidates.append((len(after), len(changes), places[::-1], other, index, changes))
    if not candidates:
        return "no consistent set is known: see images/backends/compatibility/table.yaml"
    *_, index, changes = min(candidates, key=lambda item: item[:5])
    return "nearest consistent: " + _described(relation.rows[index], versions, changes)


def _described(row: Row, versions: Versions, changes: Versions) -> str:
    """Write the versions that change, and those that a row ties to one version."""
    told = []
    for name, wanted in {**row.when, **row.needs}.items():
        exact = not wanted.startswith((">", "<", "!"))
        if name in versions and (exact or name in changes):
            pairs = zip(versions[name], changes.get(name, versions[name]), strict=True)
            own = [version for old, version in pairs if exact or version != old]
            told.append(f"{name} {'/'.join(dict.fromkeys(map(public, own)))}")
    return ", ".join(told)


def _changes(row: Row, versions: Versions) -> Versions:
    """Return the versions to change so that a row holds; nothing where the table names none to change to."""
    changes: Versions = {}
    for name, wanted in {**row.when, **row.needs}.items():
        moved = []
        for version in versions.get(name, []):
            other = version if matches(version, wanted) else row.named.get(name) or closest(version, wanted)
            if other is None:
                return {}
            moved.append(other)
        if moved != versions.get(name, []):
            changes[name] = moved
    return changes


def _left(
    versions: Versions, changes: Versions, relations: tuple[Relation, ...]
) -> set[tuple[str, str, str]]:
    changed = {**versions, **changes}
    facts = [Fact(name, version, 0) for name, found in changed.items() for version in found]
    return {item.key for item in _contradictions(facts, changed, relations)}
