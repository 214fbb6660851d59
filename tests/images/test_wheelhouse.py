"""A wheelhouse: every wheel of a lock for one machine, compared by hash; real pip, small wheels."""

from __future__ import annotations

import hashlib
import http.server
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from build_command import BuildCommand

from images import wheelhouse
from images.errors import UserError
from images.lockfile import Lock
from images.machine import Machine
from images.pins import Pin
from images.sources import Sources
from images.spec import BackendSpec
from images.specfile import load_specs

X86 = Machine("3.11", "x86_64")
ARM = Machine("3.11", "aarch64")
NAMES = [
    "alpha-1.0-py3-none-any.whl",
    "beta_two-2.0-cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64.whl",
    "beta_two-2.0-cp311-cp311-manylinux_2_17_aarch64.manylinux2014_aarch64.whl",
    "gamma-3.0-cp38-abi3-manylinux2014_x86_64.whl",
    "gamma-3.0-cp38-abi3-manylinux2014_aarch64.whl",
    "torch-9.0+cpu-cp311-cp311-linux_x86_64.whl",
]


def make_wheel(folder: Path, name: str, content: str = "") -> Path:
    """Write a small wheel that pip accepts."""
    distribution, version, *_ = name.split("-")
    path = folder / name
    info = f"{distribution}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{distribution}/__init__.py", f"# {name} {content}\n")
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass
class Index:
    """A package index on this machine; what it was asked for is kept."""

    folder: Path
    url: str = ""
    asked: list[str] = field(default_factory=list)

    def page(self, name: str) -> str | None:
        files = [path for path in sorted(self.folder.glob("*.whl")) if path.name.partition("-")[0] == name]
        return "".join(f'<a href="/files/{path.name}">{path.name}</a>\n' for path in files) if files else None


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    folder = tmp_path / "index"
    folder.mkdir()
    for name in NAMES:
        make_wheel(folder, name)
    found = Index(folder)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, _, name = self.path.strip("/").replace("%2B", "+").partition("/")
            found.asked.append(f"{kind}/{name}")
            # torch is on an index of its own.
            listed = kind == ("own" if name == "torch" else "simple")
            text = found.page(name.replace("-", "_")) if listed else None
            data = text.encode() if text else (folder / name).read_bytes() if kind == "files" else None
            self.send_response(200 if data else 404)
            self.send_header("Content-Type", "text/html" if text else "application/octet-stream")
            self.end_headers()
            self.wfile.write(data or b"")

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found.url = f"http://127.0.0.1:{server.server_port}/simple"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    # Nothing of this machine's own settings of pip, and no cache: what is seen comes from this index.
    for name, value in {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_CACHE_DIR": "1"}.items():
        monkeypatch.setenv(name, value)
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    yield found
    server.shutdown()


@pytest.fixture
def spec(index: Index) -> BackendSpec:
    cpu = load_specs()["cpu"]
    # Its own index is another path of the same server, to see what is asked where.
    own = index.url.replace("/simple", "/own")
    return cpu.model_copy(update={"torch": cpu.torch.model_copy(update={"index": own})})


@pytest.fixture
def lock(index: Index) -> Lock:
    def pin(name: str, version: str, marker: str = "") -> Pin:
        files = sorted(index.folder.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
        return Pin(name, version, marker, tuple(digest(path) for path in files) or ("0" * 64,))

    pins = [pin("alpha", "1.0"), pin("beta-two", "2.0"), pin("gamma", "3.0")]
    pins.append(pin("old", "1.0", "python_full_version < '3.11'"))
    return Lock("cpu", "id", "checksum", "sum", {}, "uv", [], pins=pins)


def collect(
    spec: BackendSpec, lock: Lock, folder: Path, index: Index, machine: Machine = X86
) -> wheelhouse.State:
    return wheelhouse.collect(spec, lock, folder, machine, Sources(index_url=index.url))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_every_wheel_of_one_machine_is_there_and_no_other(
    spec: BackendSpec, lock: Lock, index: Index, tmp_path: Path
) -> None:
    state = collect(spec, lock, tmp_path / "wheels", index)
    assert names(tmp_path / "wheels") == [NAMES[0], NAMES[1], NAMES[3]]
    assert state.missing == []
    assert state.size_bytes == sum((index.folder / NAMES[number]).stat().st_size for number in (0, 1, 3))
    # A pin for another Python, and an index that only torch needs, are not asked for.
    assert [path for path in index.asked if not path.startswith("files/")] == [
        "simple/alpha",
        "simple/beta-two",
        "simple/gamma",
    ]


def test_a_folder_holds_wheels_of_other_machines_too(
    spec: BackendSpec, lock: Lock, index: Index, tmp_path: Path
) -> None:
    folder = tmp_path / "wheels"
    collect(spec, lock, folder, index, ARM)
    assert names(folder) == [NAMES[0], NAMES[2], NAMES[4]]
    collect(spec, lock, folder, index, X86)
    assert names(folder) == sorted(NAMES[:5])
    assert wheelhouse.require_complete(spec, lock, folder, ARM).found["gamma"].name == NAMES[4]
    assert wheelhouse.require_complete(spec, lock, folder, X86).found["gamma"].name == NAMES[3]


def test_what_is_there_is_compared_and_not_fetched_again(
    spec: BackendSpec, lock: Lock, index: Index, tmp_path: Path
) -> None:
    folder = tmp_path / "wheels"
    collect(spec, lock, folder, index)
    (folder / NAMES[3]).unlink()
    (folder / ".part-killed").mkdir()
    (folder / ".part-killed" / NAMES[3]).write_bytes(b"half a wheel")
    index.asked.clear()
    collect(spec, lock, folder, index)
    assert names(folder) == [NAMES[0], NAMES[1], NAMES[3]]
    assert index.asked == ["simple/gamma", f"files/{NAMES[3]}"]


def test_a_given_folder_comes_first(spec: BackendSpec, lock: Lock, index: Index, tmp_path: Path) -> None:
    near = tmp_path / "near"
    near.mkdir()
    (near / NAMES[1]).write_bytes((index.folder / NAMES[1]).read_bytes())
    make_wheel(near, NAMES[0], "another content: not the locked one")
    (index.folder / NAMES[1]).unlink()
    sources = Sources(wheelhouse=near, index_url=index.url)
    state = wheelhouse.collect(spec, lock, tmp_path / "wheels", X86, sources)
    assert sorted(state.found) == ["alpha", "beta-two", "gamma"]
    assert names(near) == sorted([NAMES[0], NAMES[1]])


def test_the_index_of_the_spec_is_asked_for_its_own_wheel_alone(
    spec: BackendSpec, lock: Lock, index: Index, tmp_path: Path
) -> None:
    lock.pins.insert(0, Pin("torch", "9.0+cpu", "", (digest(index.folder / NAMES[5]),)))
    state = collect(spec, lock, tmp_path / "wheels", index)
    assert "torch" in state.found
    assert [path for path in index.asked if path.startswith("own/")] == ["own/torch"]


def test_all_that_is_missing_or_has_another_hash_is_told_at_once_and_the_rest_is_kept(
    spec: BackendSpec, lock: Lock, index: Index, tmp_path: Path
) -> None:
    (index.folder / NAMES[0]).unlink()
    make_wheel(index.folder, NAMES[1], "rebuilt")
    with pytest.raises(UserError) as caught:
        collect(spec, lock, tmp_path / "wheels", index)
    assert [line.split(": ") for line in caught.value.message.splitlines()] == [
        ["alpha 1.0 for Python 3.11 on x86_64", "no index and no folder has it for this machine"],
        [
            "beta-two 2.0 for Python 3.11 on x86_64",
            "the index has a wheel of that name with another hash than the lock",
            "refused",
        ],
    ]
    assert "--wheelhouse DIR" in caught.value.hint
    assert names(tmp_path / "wheels") == [NAMES[3]]


def test_an_index_out_of_reach_is_tried_once_and_not_named(
    spec: BackendSpec, lock: Lock, index: Index, tmp_path: Path
) -> None:
    lock.pins.append(Pin("torch", "9.0+cpu", "", (digest(index.folder / NAMES[5]),)))
    sources = Sources(index_url="http://user:word@127.0.0.1:9/simple")
    with pytest.raises(UserError) as caught:
        wheelhouse.collect(spec, lock, tmp_path / "wheels", X86, sources)
    told = [line.rpartition(": ")[2] for line in caught.value.message.splitlines()]
    assert told == ["NewConnectionError"] * 3 + ["not tried"]
    assert "word" not in str(caught.value)
    assert "--ca-bundle" in caught.value.hint


def test_a_damaged_wheel_is_named_and_left_alone(
    spec: BackendSpec, lock: Lock, index: Index, tmp_path: Path
) -> None:
    folder = tmp_path / "wheels"
    collect(spec, lock, folder, index)
    for number in (0, 1):
        (folder / NAMES[number]).write_bytes(b"damaged")
    for work in (wheelhouse.require_complete, lambda *parts: collect(*parts[:3], index)):
        with pytest.raises(UserError) as caught:
            work(spec, lock, folder, X86)
        assert len(caught.value.message.splitlines()) == 2
        assert (
            f"{NAMES[0]}: sha256 {hashlib.sha256(b'damaged').hexdigest()} is not in the lock"
            in caught.value.message
        )
        assert caught.value.exit_code == 65
    assert (folder / NAMES[0]).read_bytes() == b"damaged"


def test_a_wheel_of_unknown_hash_is_told_before_anything_is_fetched(
    spec: BackendSpec, lock: Lock, index: Index, tmp_path: Path
) -> None:
    wheel = {"distribution": "torch", "version": "9.0+cpu", "python": "cp311", "architecture": "x86_64"}
    lock.wheels.append(wheel | {"sha256": "unresolved"})
    with pytest.raises(UserError) as caught:
        collect(spec, lock, tmp_path / "wheels", index)
    assert caught.value.exit_code == 78
    assert "no hash is known of torch 9.0+cpu" in caught.value.message
    assert index.asked == []


def test_check_fetches_nothing_and_counts_all_that_is_missing(build_py: BuildCommand, tmp_path: Path) -> None:
    options = [
        "--backend=cpu",
        "--architecture=x86_64",
        "--architecture=aarch64",
        "--check",
        tmp_path / "none",
    ]
    done = build_py("wheelhouse", *options)
    assert done.returncode == 1
    faults = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(faults) == 2 * 58
    assert "hint: python build.py wheelhouse --backend cpu --architecture x86_64" in done.stderr
    assert not (tmp_path / "none").exists()


def test_a_build_without_a_network_needs_a_wheelhouse(build_py: BuildCommand) -> None:
    done = build_py("--backend=cpu", "--network=none")
    assert done.returncode == 64
    assert "error: --network none: there is no --wheelhouse" in done.stderr
