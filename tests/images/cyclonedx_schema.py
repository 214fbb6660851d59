"""CycloneDX's official schema, where the library that brings it is installed."""

from __future__ import annotations

from typing import Any

import pytest


def fault_of(sbom: str) -> Any:
    """What the schema finds wrong in a document of version 1.6; None where it is valid."""
    reason = "cyclonedx-python-lib is not installed: it is in images/stack/dev.txt"
    validation = pytest.importorskip("cyclonedx.validation.json", reason=reason)
    schema = pytest.importorskip("cyclonedx.schema", reason=reason)
    return validation.JsonStrictValidator(schema.SchemaVersion.V1_6).validate_str(sbom)
