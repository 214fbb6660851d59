"""checkov's policies on manifests, in an environment of its own: 290 MB and minutes to install."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Any

import yaml

from tests.launch_checks import Finding, NotMade
from tests.launch_checks_worker import standard_objects

VERSION = "3.3.30"
# What it finds and we let be, with the reason; a test shows that it still finds each.
SKIPPED = {
    "CKV_K8S_15": "pull policy Always: a digest names one image; a restart must not need the registry",
    "CKV_K8S_40": "a uid from 10000: model, data and results belong to somebody, whom --uid and --gid name",
    "CKV_K8S_43": "image by digest: none is known before a push, so the examples have none",
    "CKV2_K8S_6": "a NetworkPolicy: it is the namespace's, and nodes meet on ports that are drawn by chance",
}


def make(folder: Path) -> Path:
    """Make the environment unless it is there; returns its folder, raises NotMade."""
    stamp = folder / ".made"
    wanted = f"{VERSION} {sys.version_info[:2]}"
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return folder
    venv.EnvBuilder(with_pip=True, clear=True, symlinks=True).create(folder)
    command = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    done = subprocess.run([*command, f"checkov=={VERSION}"], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotMade((done.stdout + done.stderr).strip())
    stamp.write_text(wanted, encoding="utf-8")
    return folder


def checkov(folder: Path, files: list[Path]) -> list[Finding]:
    """Return what it finds beside what is let be."""
    return [
        (file, f"{check}: {words}") for file, check, words in found(folder, files) if check not in SKIPPED
    ]


def found(folder: Path, files: list[Path]) -> list[tuple[str, str, str]]:
    """Return file, id and words of everything that it finds.

    It knows the kinds of Kubernetes: of a JobSet, a runtime or Volcano's Job it gets what is inside, as Jobs.
    """
    chosen = {
        f"{number}.yaml": path for number, path in enumerate(files) if not path.name.startswith("compose")
    }
    with tempfile.TemporaryDirectory(prefix="checkov-") as place:
        for name, path in chosen.items():
            text = yaml.safe_dump_all(_objects(path), sort_keys=False)
            (Path(place) / name).write_text(text, encoding="utf-8")
        options = ["--framework", "kubernetes", "--skip-download", "--quiet", "--output", "json", "-d", place]
        command = [str(folder / "bin" / "python"), "-m", "checkov.main", *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=place)
    try:
        report = json.loads(done.stdout)
        failed = report["results"]["failed_checks"]
    except (ValueError, KeyError, TypeError):
        raise RuntimeError(f"checkov: {done.stdout[-500:]}{done.stderr[-2000:]}") from None
    if wrong := report["results"].get("parsing_errors"):
        raise RuntimeError(f"checkov: could not read {wrong}")
    return [
        (str(chosen[Path(one["file_path"]).name]), one["check_id"], f"{one['resource']}: {one['check_name']}")
        for one in failed
    ]


def _objects(path: Path) -> list[dict[str, Any]]:
    objects = []
    for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        namespace = document["metadata"].get("namespace")
        for part in standard_objects(document):
            metadata = {"namespace": namespace} | part["metadata"] if namespace else part["metadata"]
            objects.append(_as_job(part) | {"metadata": metadata})
    return objects


def _as_job(part: dict[str, Any]) -> dict[str, Any]:
    """A task of Volcano's ends, as a Job does: as a pod it would be asked for probes."""
    if part["kind"] != "Pod":
        return part
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": part["spec"]}}}
