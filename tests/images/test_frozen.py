"""What a base image brings stays as it is: a stand-in base whose torch carries a vendor's version."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import subprocess
import sys
import uuid
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from build_command import ROOT

from images.progress import cure

VERSION = "2.7.1+das.opt1.dtk2604"
BYTE_CODE = "torch/__pycache__/__init__.cpython-311.pyc"
PROVIDED = ["--provided", f"torch=={VERSION}"]


def torch_files(version: str = VERSION) -> dict[str, bytes]:
    """Return the files of a torch as pip leaves them: a library, a module, and their list."""
    info = f"torch-{version}.dist-info"
    files = {
        "torch/__init__.py": f"__version__ = {version!r}\n".encode(),
        "torch/lib/libtorch.so": b"\x7fELF of the vendor",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n".encode(),
    }
    lines = []
    for name, content in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        lines.append(f"{name},sha256={digest},{len(content)}\n")
    return {**files, f"{info}/RECORD": "".join([*lines, f"{info}/RECORD,,\n{BYTE_CODE},,\n"]).encode()}


def install(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    install(tmp_path / "base", torch_files())
    return tmp_path / "base"


def frozen(*arguments: str | Path, path: list[Path]) -> subprocess.CompletedProcess[str]:
    """Run the script as a build does: by itself, in a Python that sees these folders alone."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    command = [sys.executable, "-S", str(ROOT / "images/frozen.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture
def compare(site: Path, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Note what is there now; the result compares with it later."""
    note = tmp_path / "provided.json"
    done = frozen("--write", note, *PROVIDED, path=[site])
    assert done.returncode == 0, done.stderr

    def run(*first: Path, provided: list[str] = PROVIDED) -> subprocess.CompletedProcess[str]:
        words = ["--compare", note, *provided, "--refused", "nvidia-*", "cuda-*"]
        return frozen(*words, f"--site={first[0] if first else tmp_path}", path=[*first, site])

    return run


def test_an_untouched_torch_passes(
    compare: Callable[..., subprocess.CompletedProcess[str]], site: Path
) -> None:
    # Byte code is listed, and may be written at any time.
    (site / BYTE_CODE).parent.mkdir()
    (site / BYTE_CODE).touch()
    done = compare()
    assert (done.returncode, done.stdout) == (
        0,
        "1 provided packages with 4 files are as the base image brought them\n",
    )


@pytest.mark.parametrize("name", ["torch/__init__.py", "torch/lib/libtorch.so"])
def test_a_changed_or_missing_file_is_named(
    compare: Callable[..., subprocess.CompletedProcess[str]], site: Path, name: str
) -> None:
    (site / name).write_bytes(b"another")
    done = compare()
    assert (done.returncode, done.stderr) == (
        1,
        f"error: torch: {site}/{name} changed after the base image\n",
    )
    (site / name).unlink()
    assert f"{name} changed after the base image" in compare().stderr


def test_a_torch_that_stands_before_the_base_s_is_told_even_at_the_same_version(
    compare: Callable[..., subprocess.CompletedProcess[str]], site: Path, tmp_path: Path
) -> None:
    install(tmp_path / "venv", torch_files())
    done = compare(tmp_path / "venv")
    assert done.returncode == 1
    assert f"torch: was replaced: it came from {site}, now it comes from {tmp_path / 'venv'}" in done.stderr


def test_another_version_than_the_spec_s_is_told(
    compare: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = compare(provided=["--provided", "torch==2.9.0+das"])
    assert f"error: torch: is {VERSION}, the spec says 2.9.0+das" in done.stderr


def test_every_package_of_another_torch_is_refused(
    compare: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    for name in ("nvidia_cublas_cu12", "Cuda.Toolkit", "numpy"):
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode()
        install(tmp_path / "venv", {f"{name}-1.0.dist-info/METADATA": metadata})
    install(tmp_path / "base", {"nvidia_ml_py-1.dist-info/METADATA": b"Name: nvidia-ml-py\n"})
    done = compare(tmp_path / "venv")
    # What the base itself has is the vendor's business.
    assert [line.split(":")[1] for line in done.stderr.splitlines()] == [
        " cuda-toolkit",
        " nvidia-cublas-cu12",
    ]


def test_a_base_with_another_version_is_refused_before_the_lock_is_installed(
    site: Path, tmp_path: Path
) -> None:
    done = frozen("--write", tmp_path / "note", "--provided", "torch==2.7.1+das.other", path=[site])
    assert done.returncode == 1
    assert done.stderr == f"error: torch: the base image has {VERSION}, the spec says 2.7.1+das.other\n"
    assert "--base-image REF" in cure(done.stderr)
    assert not (tmp_path / "note").exists()


def test_a_base_without_the_package_is_refused(tmp_path: Path) -> None:
    done = frozen("--write", tmp_path / "note", "--provided", "torch==1", "other==2", path=[tmp_path])
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 2
    assert "torch: the base image does not have it" in done.stderr


def test_a_package_without_a_list_of_files_is_compared_by_its_folder(
    compare: Callable[..., subprocess.CompletedProcess[str]], site: Path, tmp_path: Path
) -> None:
    (site / f"torch-{VERSION}.dist-info/RECORD").unlink()
    note = tmp_path / "again.json"
    assert frozen("--write", note, *PROVIDED, path=[site]).returncode == 0
    (site / "torch/lib/libtorch.so").write_bytes(b"another")
    done = frozen("--compare", note, *PROVIDED, path=[site])
    assert "torch/lib/libtorch.so changed after the base image" in done.stderr


def wheel(folder: Path, distribution: str, version: str, files: dict[str, bytes]) -> str:
    """Write a wheel; returns the line of a lock."""
    path = folder / f"{distribution}-{version}-py3-none-any.whl"
    info = f"{distribution}-{version}.dist-info"
    about = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    kind = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    content = {
        **files,
        f"{info}/METADATA": about.encode(),
        f"{info}/WHEEL": kind.encode(),
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    return f"{distribution}=={version} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}\n"


def docker(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["docker", *map(str, arguments)], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.fixture
def stand_in(
    build_options: list[str], tmp_path: Path
) -> Iterator[Callable[..., subprocess.CompletedProcess[str]]]:
    """Build the rendered Dockerfile up to the comparison, on a base with a vendor's torch, no network."""
    base = next(option for option in build_options if option.startswith("--base-image=")).partition("=")[2]
    files = tmp_path / "files"
    install(files / "usr/lib/python3/dist-packages", torch_files())
    (files / "Dockerfile").write_text(f"FROM {base}\nCOPY usr /usr\n", encoding="utf-8")
    made = docker("buildx", "build", "--tag=isotune-test:vendor", ".", cwd=files)
    assert made.returncode == 0, made.stderr
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    context = tmp_path / "context"
    rendered = context / "images/rendered/hygon"
    rendered.mkdir(parents=True)
    for name in ("frozen.py", "settle.sh", "trim.json", "trim.py"):
        (context / "images" / name).write_bytes((ROOT / "images" / name).read_bytes())
    constraints = (ROOT / "images/rendered/hygon/constraints.txt").read_bytes()
    (rendered / "constraints.txt").write_bytes(constraints)
    text = (ROOT / "images/rendered/hygon/Dockerfile").read_text(encoding="utf-8")
    # The stand-in is Debian bookworm with Python 3.11.
    text = text.partition("# A later `pip install`")[0].replace("(3, 10)", "(3, 11)")

    def build(*lines: str, between: str = "") -> subprocess.CompletedProcess[str]:
        lock = context / "images/locks/hygon/requirements.txt"
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.write_text("".join(lines), encoding="utf-8")
        own = text.replace("# Byte code that holds", f"{between}\n# Byte code that holds", 1)
        (rendered / "Dockerfile").write_text(own, encoding="utf-8")
        secret = tmp_path / "pip.conf"
        secret.write_text("[global]\nno-index = true\n", encoding="utf-8")
        options = ["--network=none", f"--build-context=wheelhouse={wheels}", f"--secret=id=pip,src={secret}"]
        options += ["--build-arg=BASE_IMAGE=isotune-test:vendor", "--output=type=cacheonly"]
        return docker(
            "buildx", "build", "--progress=plain", *options, f"-f={rendered}/Dockerfile", ".", cwd=context
        )

    yield build
    docker("image", "rm", "-f", "isotune-test:vendor", cwd=files)


@pytest.mark.engine
def test_a_build_fails_when_what_the_base_brings_is_replaced_changed_or_joined(
    stand_in: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    wheels = tmp_path / "wheels"
    # Its content is new each time: a step that the engine has cached prints nothing.
    plain = wheel(wheels, "alpha", "1.0", {"alpha/__init__.py": f"# {uuid.uuid4()}\n".encode()})
    same = {name: data for name, data in torch_files().items() if not name.endswith("RECORD")}
    # Even a lock with torch in it leaves the base's alone: pip finds it installed.
    done = stand_in(plain, wheel(wheels, "torch", VERSION, same))
    assert done.returncode == 0, done.stderr
    assert "1 provided packages with 4 files are as the base image brought them" in done.stderr

    done = stand_in(plain, wheel(wheels, "nvidia_cublas_cu12", "12.8", {"nvidia/__init__.py": b""}))
    assert done.returncode != 0
    assert "error: nvidia-cublas-cu12: is refused here" in done.stderr

    library = "/usr/lib/python3/dist-packages/torch/lib/libtorch.so"
    done = stand_in(plain, between=f"RUN echo other >{library}\n")
    assert done.returncode != 0
    assert f"error: torch: {library} changed after the base image" in done.stderr

    forged = re.sub("sha256:[0-9a-f]+", f"sha256:{'0' * 64}", plain)
    done = stand_in(forged)
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert "a wheel is not the locked one" in cure(done.stderr)

    done = stand_in(plain, wheel(wheels, "torch", "2.13.0", {"torch/__init__.py": b""}))
    assert done.returncode != 0
    assert "constraint" in done.stderr
