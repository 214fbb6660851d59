"""Locks: what goes into one, when it is stale, and hashes that contradict each other. No network here."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import threading
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from build_command import ROOT, BuildCommand

from images import lock, lockfile, wheels
from images.errors import EXIT_CONFIG, EXIT_DATA, UserError
from images.pins import Pin, parse_requirements
from images.resolve import Request, _without_common_marker, find_uv, resolve
from images.spec import BackendSpec, WheelHash
from images.spec_types import UNRESOLVED
from images.specfile import load_specs

IMAGES = sorted(load_specs())
REQUIREMENTS = ROOT / "images/locks/cpu/requirements.txt"


@pytest.fixture
def cpu() -> BackendSpec:
    return load_specs()["cpu"]


def make_wheel(folder: Path, python: str = "cp311", requires: list[str] | None = None) -> Path:
    """A file with the name and metadata of a torch wheel."""
    path = folder / f"torch-2.13.0+cpu-{python}-{python}-manylinux_2_28_x86_64.whl"
    lines = [f"Requires-Dist: {line}" for line in requires or load_specs()["cpu"].torch.requires]
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("torch-2.13.0+cpu.dist-info/METADATA", "Name: torch\n" + "\n".join(lines) + "\n\n")
    return path


def known(python: str = "cp311", sha256: str = "a" * 64) -> WheelHash:
    return WheelHash(python=python, architecture="x86_64", sha256=sha256, source="somewhere", confidence="T")


def test_pins_survive_writing_and_reading() -> None:
    pins = [
        Pin("a", "1.0", "", ("1" * 64, "2" * 64)),
        Pin("b-c", "2+cpu", "python_full_version < '3.11'", ("3" * 64,)),
    ]
    assert parse_requirements("# head\n" + "\n".join(map(str, pins)) + "\n") == pins


def test_a_change_of_the_spec_makes_the_lock_stale(cpu: BackendSpec) -> None:
    newer = cpu.model_copy(update={"torch": cpu.torch.model_copy(update={"version": "2.14.0+cpu"})})
    assert lockfile.lock_status(newer)[0] == lockfile.STALE
    with pytest.raises(UserError, match="stale") as caught:
        lockfile.require_fresh(newer)
    assert caught.value.exit_code == EXIT_CONFIG
    assert caught.value.hint == "python build.py lock --backend cpu"


def test_a_change_of_the_stack_makes_the_lock_stale(tree_build_py: BuildCommand) -> None:
    stack = tree_build_py.tree / "images/stack/train.txt"
    assert tree_build_py("lock", "--backend=cpu", "--check").returncode == 0
    stack.write_text("# only a comment\n" + stack.read_text(encoding="utf-8"), encoding="utf-8")
    assert tree_build_py("lock", "--backend=cpu", "--check").returncode == 0
    stack.write_text(stack.read_text(encoding="utf-8") + "einops\n", encoding="utf-8")
    checked = tree_build_py("lock", "--backend=cpu", "--check")
    assert checked.returncode == 1
    assert "error: images/locks/cpu: stale" in checked.stderr
    built = tree_build_py("--backend=cpu")
    assert (built.returncode, built.stdout) == (EXIT_CONFIG, "")
    assert "hint: python build.py lock --backend cpu" in built.stderr


def test_a_lock_that_was_edited_by_hand_is_refused(tree_build_py: BuildCommand) -> None:
    path = tree_build_py.tree / "images/locks/cpu/requirements.txt"
    path.write_text(
        path.read_text(encoding="utf-8").replace("peft==0.21.2", "peft==0.21.1"), encoding="utf-8"
    )
    done = tree_build_py("list")
    assert done.returncode == EXIT_CONFIG
    assert "images/locks/cpu/requirements.txt: was changed by hand" in done.stderr


def test_a_backend_without_a_lock_is_told_how_to_get_one(tree_build_py: BuildCommand) -> None:
    shutil.rmtree(tree_build_py.tree / "images/locks/cuda", ignore_errors=True)
    done = tree_build_py("--backend=cuda")
    assert done.returncode == EXIT_CONFIG
    assert done.stderr == (
        "error: images/locks/cuda: there is no lock yet\nhint: python build.py lock --backend cuda\n"
    )


def test_a_seen_wheel_resolves_an_unresolved_hash(tmp_path: Path) -> None:
    path = make_wheel(tmp_path)
    seen = wheels.in_folder(tmp_path, "torch")
    (merged,) = wheels.merge([known(sha256=UNRESOLVED)], seen, "2.13.0+cpu")
    assert merged.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert (merged.source, merged.confidence) == ("measured on the wheel", "P")


def test_every_seen_wheel_that_contradicts_a_known_hash_is_named(tmp_path: Path) -> None:
    make_wheel(tmp_path, "cp311")
    make_wheel(tmp_path, "cp312")
    with pytest.raises(UserError) as caught:
        wheels.merge([known("cp311"), known("cp312")], wheels.in_folder(tmp_path, "torch"), "2.13.0+cpu")
    assert caught.value.exit_code == EXIT_DATA
    assert len(caught.value.message.splitlines()) == 2
    assert "a" * 64 in caught.value.message


def test_a_wheel_of_another_version_says_nothing(tmp_path: Path) -> None:
    make_wheel(tmp_path)
    assert wheels.merge([known()], wheels.in_folder(tmp_path, "torch"), "2.14.0+cpu") == [known()]


def test_what_an_earlier_lock_resolved_is_kept_but_never_wins_over_the_spec() -> None:
    earlier = [wheels.SeenWheel("lock.yaml", "1", "cp311", "x86_64", "b" * 64, "an index")]
    (filled,) = wheels.fill([known(sha256=UNRESOLVED)], earlier, "1")
    assert filled.sha256 == "b" * 64
    assert wheels.fill([known()], earlier, "1") == [known()]


def test_a_wheel_with_other_requirements_than_the_spec_stops_the_lock(
    tree_build_py: BuildCommand, tmp_path: Path
) -> None:
    make_wheel(tmp_path, requires=["numpy"])
    before = (tree_build_py.tree / "images/locks/cpu/lock.yaml").read_bytes()
    done = tree_build_py("lock", "--backend=cpu", f"--wheelhouse={tmp_path}")
    assert done.returncode == EXIT_DATA
    assert "requires ['numpy'], but torch.requires of the spec says" in done.stderr
    assert (tree_build_py.tree / "images/locks/cpu/lock.yaml").read_bytes() == before


def test_an_index_is_read_for_hashes(tmp_path: Path) -> None:
    file = "torch-2.13.0%2Bcpu-cp310-cp310-manylinux_2_28_x86_64.whl"
    others = [
        file.replace("cp310-cp310", "cp313-cp313t"),
        "torch-1-py3-none-any.whl",
        "torchvision-1-cp310-cp310-linux_x86_64.whl",
    ]
    links = [f'<a href="/whl/{name}#sha256={"c" * 64}">x</a>' for name in (file, *others)]
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "index.html").write_text("\n".join(links), encoding="utf-8")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        index = f"http://127.0.0.1:{server.server_port}"
        seen = wheels.on_index(index, "torch")
        server.shutdown()
    assert seen is not None
    assert [(item.version, item.python, item.sha256) for item in seen] == [("2.13.0+cpu", "cp310", "c" * 64)]
    assert seen[0].source == f"listed by {index}"


def test_an_index_out_of_reach_is_no_fault() -> None:
    assert wheels.on_index("http://127.0.0.1:9/whl/cpu", "torch") is None


def test_markers_keep_only_what_differs_from_the_environments() -> None:
    machines = ("aarch64", "x86_64")
    either = " or ".join(f"(platform_machine == '{name}' and sys_platform == 'linux')" for name in machines)
    where = f"({either})"
    whole = f"python_full_version < '3.13' and {where}"
    pins = [
        Pin("a", "1", whole),
        Pin("b", "1", whole),
        Pin("c", "1", f"python_full_version < '3.11' and {where}"),
        Pin("d", "1", f"python_full_version >= '3.11' and python_full_version < '3.13' and {where}"),
        Pin("e", "1", "python_full_version < '3.13' and platform_machine == 'x86_64'"),
    ]
    assert [pin.marker for pin in _without_common_marker(pins, ["x"])] == [
        "",
        "",
        "python_full_version < '3.11'",
        "python_full_version >= '3.11'",
        "platform_machine == 'x86_64'",
    ]


def test_the_resolver_is_asked_for_each_architecture_s_own_torch() -> None:
    """2.10.0+cpu satisfies ==2.10.0: without the exclusion both architectures would get it."""
    request = lock._request(load_specs()["ascend"], [], None)
    own = [
        "torch==2.10.0,!=2.10.0+cpu ; platform_machine == 'aarch64'",
        "torch==2.10.0+cpu ; platform_machine == 'x86_64'",
    ]
    assert request.overrides == own
    assert {*own, "torch-npu==2.10.0.post4", "protobuf>=3.20,<3.21"} <= set(request.requirements)
    assert [item.version for item in request.stand_ins] == ["2.10.0+cpu"]
    assert lock._request(load_specs()["cuda"], [], None).overrides == []


def test_of_the_index_s_files_only_those_of_the_spec_are_locked_if_it_names_them_all() -> None:
    spec = load_specs()["cuda"]
    listed = Pin("torch", "2.10.0", "", ("a" * 64, "b" * 64))
    assert lock._with_hashes(listed, spec, {("torch", "2.10.0"): [known("cp312")]}).hashes == ("a" * 64,)
    partly = [known("cp312"), known("cp311", UNRESOLVED)]
    assert lock._with_hashes(listed, spec, {("torch", "2.10.0"): partly}) == listed
    with pytest.raises(UserError, match="the index does not list c"):
        lock._with_hashes(listed, spec, {("torch", "2.10.0"): [known("cp312", "c" * 64)]})


def test_other_locks_are_preferred_where_there_is_no_own_pin(tree_build_py: BuildCommand) -> None:
    """So a new image gets the versions that the others have, not the newest of the day."""
    shutil.rmtree(tree_build_py.tree / "images/locks/cuda")
    code = "from images.lock import _preferred; print(_preferred('cuda'))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tree_build_py.tree, capture_output=True, text=True, check=True
    )
    found = {pin.name: pin.version for pin in parse_requirements(done.stdout)}
    cpu = {pin.name: pin.version for pin in parse_requirements(REQUIREMENTS.read_text(encoding="utf-8"))}
    common = cpu.keys() - {"torch"}
    assert {name: found[name] for name in common} == {name: cpu[name] for name in common}


@pytest.mark.slow
def test_resolving_again_changes_nothing(tree_build_py: BuildCommand) -> None:
    """Needs an index in reach."""
    specs = load_specs()
    for name in (*IMAGES, "tools"):
        which = ["--tools"] if name == "tools" else specs[name].selection.split()
        done = tree_build_py("lock", *which)
        assert done.returncode == 0, done.stderr
        for path in sorted((ROOT / "images/locks" / name).iterdir()):
            assert (tree_build_py.tree / path.relative_to(ROOT)).read_bytes() == path.read_bytes()


@pytest.mark.slow
def test_what_cannot_be_resolved_is_told_in_uv_s_words() -> None:
    """Needs an index in reach."""
    request = Request(["peft==0.21.2", "peft==0.21.1"], "3.10")
    with pytest.raises(UserError, match=r"peft"):
        resolve(request, None, find_uv())
