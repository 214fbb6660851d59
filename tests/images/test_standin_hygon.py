"""Hygon's lock on a stand-in base: Debian, whose system Python has a torch with the vendor's version.

That torch is the CPU wheel of the cpu lock under another name, so it trains, and verify has work.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from build_command import BuildCommand
from conftest import copy_tree
from standin import change_spec, docker, keep, restamp, states, verified, without

pytestmark = [pytest.mark.engine, pytest.mark.slow]

VERSION = "2.7.1+das.opt1.dtk2604"
BASE, TAG = "isotune-test:hygon-base", "isotune-test:hygon"
SITE = "/usr/lib/python3/dist-packages"
RELABEL = f"""
import base64, csv, hashlib, io, pathlib, re
site = pathlib.Path({SITE!r})
(old,) = site.glob("torch-*.dist-info")
new = site / "torch-{VERSION}.dist-info"
old.rename(new)
for name, start, line in (
    ("torch/version.py", "__version__ = ", "__version__ = '{VERSION}'"),
    (new.name + "/METADATA", "Version: ", "Version: {VERSION}"),
):
    text = (site / name).read_text()
    (site / name).write_text(re.sub("(?m)^" + start + ".*$", line, text, count=1))
rows = []
for name, digest, size in csv.reader(io.StringIO((new / "RECORD").read_text())):
    name = name.replace(old.name, new.name)
    data = (site / name).read_bytes() if name in ("torch/version.py", new.name + "/METADATA") else b""
    if data:
        digest = "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        size = len(data)
    rows.append((name, digest, size))
with (new / "RECORD").open("w", newline="") as file:
    csv.writer(file, lineterminator="\\n").writerows(rows)
"""
DOCKERFILE = """
FROM {base}
RUN --mount=type=bind,source=wheels,target=/wheels --mount=type=bind,source=relabel.py,target=/relabel.py \\
    python3 -m pip install --no-deps --no-index --no-compile --no-cache-dir --target {site} /wheels/*.whl \\
    && python3 /relabel.py
"""
# What the vendor's torch finds in its own base.
COMPANIONS = ("torch", "sympy", "mpmath", "networkx")


@pytest.fixture(scope="module")
def hygon(build_options: list[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuildCommand]:
    """A tree whose hygon image is for Python 3.11, built as isotune-test:hygon."""
    folder = tmp_path_factory.mktemp("hygon")
    _make_base(build_options, folder)
    build = BuildCommand(copy_tree(folder / "tree"))
    change_spec(build, "hygon", lambda spec: spec["python"].update(version="3.11", covers=["3.11"]))
    restamp(build, "hygon")
    options = without(build_options, "--backend", "--base-image", "--wheelhouse")
    done = build("--backend=hygon", f"--base-image={BASE}", *options, f"--tag={TAG}")
    assert done.returncode == 0, done.stderr
    yield build
    docker("image", "rm", "-f", BASE, TAG)


def _make_base(build_options: list[str], folder: Path) -> None:
    lock = (BuildCommand().tree / "images/locks/cpu/requirements.txt").read_text(encoding="utf-8")
    pins = [line.split()[0] for line in lock.splitlines() if line.split("==")[0] in COMPANIONS]
    given = [f"--find-links={o.partition('=')[2]}" for o in build_options if o.startswith("--wheelhouse=")]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={folder}/wheels"]
    subprocess.run([*command, "--python-version=3.11", "--only-binary=:all:", *given, *pins], check=True)
    base = next(option for option in build_options if option.startswith("--base-image=")).partition("=")[2]
    (folder / "relabel.py").write_text(RELABEL, encoding="utf-8")
    (folder / "Dockerfile").write_text(DOCKERFILE.format(base=base, site=SITE), encoding="utf-8")
    done = docker("buildx", "build", f"--tag={BASE}", "--output=type=docker", ".", cwd=folder)
    assert done.returncode == 0, done.stderr


def run(*command: str) -> str:
    done = docker("run", "--rm", "--network=none", "--read-only", "--user=12345:0", TAG, *command)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_vendor_s_torch_trains_and_verify_compares_its_version(hygon: BuildCommand) -> None:
    report = verified(TAG)
    assert report.status == "passed", report
    found = {check.name: check.detail for check in report.checks}
    assert found["torch"].startswith(f"version {VERSION}, cuda None")
    assert set(states(report).values()) == {"passed"}
    place = "Debian bookworm with the lock in its Python 3.11 (the image has 3.10), "
    place += "and the CPU wheel of torch 2.13.0 under the vendor's version; "
    place += "network none, read-only root, uid 12345"
    keep("hygon", "x86_64", place, report, hygon)


def test_not_one_file_of_the_vendor_s_torch_was_taken_out_or_replaced(hygon: BuildCommand) -> None:
    """Its tests and headers stay, though those of the lock's wheels go."""
    code = """
import importlib.metadata, json, os, sys, torch
folder = os.path.dirname(torch.__file__)
trimmed = json.load(open(sys.prefix + "/trimmed.json"))
names = [name for rule in trimmed["rules"] for name in rule["files"]]
there = [os.path.isdir(os.path.join(folder, name)) for name in ("test", "include")]
own = [name for name in names if name.startswith("torch/")]
print(json.dumps([torch.__file__, torch.__version__, there, own, len(names)]))
"""
    file, version, there, torch_names, count = json.loads(run("python", "-c", code))
    assert (file, version) == (f"{SITE}/torch/__init__.py", VERSION)
    assert there == [True, True]
    assert torch_names == []
    assert count > 1000


def test_a_derived_image_cannot_replace_it_by_a_careless_install(hygon: BuildCommand) -> None:
    assert run("sh", "-c", "cat $PIP_CONSTRAINT").splitlines()[-1] == f"torch=={VERSION}"
    provided = yaml.safe_load(run("cat", "/opt/isotune/provided.json"))
    assert provided["torch"]["version"] == VERSION
    assert len(provided["torch"]["files"]) > 10000
