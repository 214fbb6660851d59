"""The house rules on manifests: silent on every example, and each one seen to find its fault."""

from __future__ import annotations

import pytest

from images.launch.examples import EXAMPLES
from images.launch.rules import RULES, check_manifest
from tests.launch_faults import Broken
from tests.launch_rule_faults import BY_RULES

FILES = sorted(EXAMPLES.rglob("*.yaml"))


def test_every_image_has_an_example_of_every_shape() -> None:
    assert len(FILES) == 7 * 6


def test_no_rule_finds_anything_in_the_examples() -> None:
    found = [fault for path in FILES for fault in check_manifest(path.name, path.read_text(encoding="utf-8"))]
    assert found == []


@pytest.mark.parametrize("fault", BY_RULES, ids=lambda fault: fault.name)
def test_a_fault_is_found_with_its_line_and_cure(fault: Broken) -> None:
    found = check_manifest("manifest.yaml", fault.text())
    assert fault.rule in {finding.where for finding in found}, [str(finding) for finding in found]
    assert all(finding.hint and finding.line > 0 for finding in found)


def test_every_rule_has_a_fault_that_it_finds() -> None:
    assert {fault.rule for fault in BY_RULES} == set(RULES)


def test_what_is_no_manifest_is_told() -> None:
    assert "is not YAML" in str(check_manifest("x.yaml", "a: [")[0])
    assert "something else than objects" in str(check_manifest("x.yaml", "- a\n")[0])


def test_a_finding_names_its_line() -> None:
    text = (
        (FILES[0].parent / "job.yaml")
        .read_text(encoding="utf-8")
        .replace("privileged: false", "privileged: true")
    )
    (finding,) = check_manifest("job.yaml", text)
    place = text.splitlines()[finding.line - 1]
    assert place.strip() == "allowPrivilegeEscalation: false"
    assert "spec.template.spec.containers[0].securityContext" in finding.what
