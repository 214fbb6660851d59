"""A real build on a real engine: what is in the image, what is not, and what a failure says."""

from __future__ import annotations

import gzip
import json
import subprocess
import tarfile
from pathlib import Path
from typing import IO

import pytest
from build_command import BuildCommand, Image
from conftest import SECRET

pytestmark = pytest.mark.engine


def inspect(image: Image) -> dict[str, object]:
    done = subprocess.run(
        ["docker", "image", "inspect", image.reference], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)[0]


def python(image: Image, code: str, *options: str) -> str:
    done = image.run("python", "-c", code, options=options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_build_prints_its_digest_alone_on_stdout_and_its_steps_on_stderr(cpu_image: Image) -> None:
    assert cpu_image.digest.startswith("sha256:")
    assert len(cpu_image.digest.splitlines()) == 1
    assert "install the wheels of the lock" in cpu_image.log
    assert "verify the image" in cpu_image.log


def test_the_same_build_again_gives_the_same_digest(cpu_image: Image) -> None:
    again = cpu_image.build_again()
    assert again.returncode == 0, again.stderr
    assert again.stdout.strip() == cpu_image.digest


def test_train_runs_for_an_unknown_user_without_network_or_anything_to_write_to(cpu_image: Image) -> None:
    done = cpu_image.run("train", "--help")
    assert done.returncode == 0, done.stderr
    assert "--adapter" in done.stdout


def test_no_start_compiles_a_module_of_python_s_own(cpu_image: Image) -> None:
    code = """
import asyncio, ctypes, decimal, email.message, json, sys, typing, unittest
from importlib.util import MAGIC_NUMBER
def stale(module):
    if "site-packages" in module.__file__ or not getattr(module, "__cached__", None): return False
    try: head = open(module.__cached__, "rb").read(16)
    except OSError: return True
    return head[:4] != MAGIC_NUMBER or head[4:8] != b"\\x01\\0\\0\\0"
found = [m for m in list(sys.modules.values()) if getattr(m, "__file__", None) and m.__file__.endswith(".py")]
print(len(found), [m.__name__ for m in found if m.__name__ != "__main__" and stale(m)])
"""
    count, _, names = python(cpu_image, code).partition(" ")
    assert int(count) > 50
    assert names == "[]"


def test_without_arguments_an_image_explains_train(cpu_image: Image) -> None:
    assert cpu_image.run().stdout == cpu_image.run("train", "--help").stdout


def test_the_entrypoint_becomes_its_command(cpu_image: Image) -> None:
    """Signals reach the training only if no shell stays before it."""
    assert cpu_image.run("cat", "/proc/1/cmdline").stdout.split("\0")[:1] == ["cat"]
    assert cpu_image.run("sh", "-c", "exit 75").returncode == 75


def test_every_cache_is_somewhere_writable(cpu_image: Image) -> None:
    code = """
import os, tempfile
names = ["HOME", "XDG_CACHE_HOME", "MPLCONFIGDIR", "HF_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"]
for name in names:
    os.makedirs(os.environ[name], exist_ok=True)
    open(os.path.join(os.environ[name], "probe"), "w").close()
tempfile.TemporaryFile().close()
import getpass; print(getpass.getuser())
"""
    assert python(cpu_image, code) == "isotune"


def test_what_the_user_set_is_left_as_it_is(cpu_image: Image) -> None:
    code = "import os; print(os.environ['HOME'], os.environ['HF_HOME'])"
    options = ("--tmpfs=/home/me:mode=1777", "--env=HOME=/home/me", "--env=HF_HOME=/cache")
    assert python(cpu_image, code, *options) == "/home/me /cache"


def test_the_user_s_folder_and_empty_search_path_entries_cannot_replace_a_module(cpu_image: Image) -> None:
    # Written inside: a bind mount would come from the engine's host, which need not be this one.
    script = """
cd /data; mkdir train; touch train/__init__.py
echo "def main(): print('the wrong train')" >train/cli.py
echo "raise SystemExit('the wrong json')" >json.py
train --help && cd / && PYTHONPATH=/data python -c 'import json'
"""
    options = ("--tmpfs=/data:mode=1777", "--env=PYTHONPATH=/opt/none:")
    done = cpu_image.run("sh", "-c", script, options=options)
    assert "--adapter" in done.stdout, done.stderr
    # The last command finds the trap, so there was one to step into.
    assert done.stderr.endswith("the wrong json\n")


def test_hubs_are_off_and_nobody_is_told(cpu_image: Image) -> None:
    names = [
        "HF_HUB_OFFLINE",
        "HF_DATASETS_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "HF_HUB_DISABLE_TELEMETRY",
        "DO_NOT_TRACK",
    ]
    assert python(cpu_image, f"import os; print([os.environ[name] for name in {names}])") == str(["1"] * 5)


def test_build_info_tells_the_true_base_and_the_hash_of_every_record(cpu_image: Image) -> None:
    code = """
import hashlib, importlib.metadata, json, sys
info = json.load(open(sys.prefix + "/build-info.json"))
for name, digest in info["records"].items():
    record = importlib.metadata.distribution(name)._path / "RECORD"
    assert hashlib.sha256(record.read_bytes()).hexdigest() == digest, name
told = [info[name] for name in ("base_overridden", "base_image", "base_digest")]
print(json.dumps([sys.prefix, *told, len(info["records"])]))
"""
    prefix, overridden, base, digest, records = json.loads(python(cpu_image, code))
    given = next(option for option in cpu_image.options if option.startswith("--base-image="))
    assert (prefix, overridden, base) == ("/opt/isotune", True, given.partition("=")[2])
    assert digest.startswith("sha256:")
    # exceptiongroup and tomli are for Python 3.10.
    assert records == 58


def test_labels_name_lock_base_and_commit(cpu_image: Image) -> None:
    config = inspect(cpu_image)["Config"]
    assert isinstance(config, dict)
    labels = config["Labels"]
    assert labels["isotune.backend"] == "cpu"
    assert labels["isotune.base-overridden"] == "true"
    assert labels["isotune.lock-id"]
    assert labels["org.opencontainers.image.base.digest"].startswith("sha256:")
    assert config["User"] == "1000:0"
    assert config["WorkingDir"] == "/workspace"


def test_no_environment_of_the_build_stays(cpu_image: Image) -> None:
    config = inspect(cpu_image)["Config"]
    assert isinstance(config, dict)
    assert not [
        line for line in config["Env"] if line.startswith(("TORCH_DEVICE_BACKEND_AUTOLOAD", "PIP_", "SSL_"))
    ]


def test_byte_code_holds_no_times(cpu_image: Image) -> None:
    code = """
import pathlib, struct, sys
found = list(pathlib.Path("/opt/isotune").rglob("*.pyc"))
print(len(found) > 5000, {struct.unpack("<I", path.read_bytes()[4:8])[0] for path in found})
"""
    assert python(cpu_image, code) == "True {1}"


def test_files_of_our_layers_have_one_time(cpu_image: Image) -> None:
    code = """
import os
paths = [os.path.join(folder, name) for folder, _, files in os.walk("/opt/isotune") for name in files]
print({os.lstat(path).st_mtime for path in paths})
"""
    assert python(cpu_image, code) == "{1767225600.0}"


def holds(stream: IO[bytes], word: bytes) -> bool:
    tail = b""
    while block := stream.read(1 << 22):
        if word in tail + block:
            return True
        tail = block[-len(word) :]
    return False


def test_neither_certificate_nor_address_nor_wheel_is_in_any_layer_or_label(
    cpu_image: Image, tmp_path: Path
) -> None:
    """Every byte of `docker save` is read, unpacked."""
    path = tmp_path / "image.tar"
    subprocess.run(["docker", "save", "--output", str(path), cpu_image.reference], check=True)
    found, layers, names = [], 0, []
    with tarfile.open(path) as saved:
        for member in filter(tarfile.TarInfo.isfile, saved):
            blob = saved.extractfile(member)
            assert blob
            if blob.read(2) != b"\x1f\x8b":
                blob.seek(0)
                found += [member.name] if holds(blob, SECRET.encode()) else []
                continue
            layers += 1
            blob.seek(0)
            found += [member.name] if holds(gzip.GzipFile(fileobj=blob), SECRET.encode()) else []
            blob.seek(0)
            with tarfile.open(fileobj=blob, mode="r:gz") as layer:
                names += layer.getnames()
    assert layers > 3
    assert found == []
    assert len(names) > 10000
    assert [
        name
        for name in names
        if name.endswith(".whl") and "ensurepip" not in name and "python-wheels" not in name
    ] == []
    assert [name for name in names if name.startswith(("tmp/", "root/.cache", "run/secrets", "mnt/"))] == []


def test_a_failing_verification_stops_the_build_and_shows_its_last_lines(
    build_options: list[str], cpu_image: Image, tree_build_py: BuildCommand
) -> None:
    code = "def main():\n    print('failed  build: a check that tests broke')\n    raise SystemExit(1)\n"
    (tree_build_py.tree / "train" / "cli.py").write_text(code, encoding="utf-8")
    done = tree_build_py(*build_options, "--tag=isotune-test:broken")
    assert done.returncode == 1
    assert done.stdout == ""
    assert "      | failed  build: a check that tests broke" in done.stderr
    assert "error: build: step `verify the image`: " in done.stderr
    assert "hint: " in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
    gone = subprocess.run(
        ["docker", "image", "inspect", "isotune-test:broken"], capture_output=True, check=False
    )
    assert gone.returncode != 0


def test_an_oci_layout_holds_the_same_digest(cpu_image: Image, tmp_path: Path) -> None:
    for path in (tmp_path / "layout", tmp_path / "image.tar"):
        done = cpu_image.build_again(f"--output=oci:{path}")
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == cpu_image.digest
    index = json.loads((tmp_path / "layout" / "index.json").read_text(encoding="utf-8"))
    assert index["manifests"][0]["digest"] == cpu_image.digest


def test_a_proxy_s_settings_reach_the_steps_of_a_build(cpu_image: Image, tmp_path: Path) -> None:
    """So the search for them in every layer, above, looks for something that was there."""
    base = next(option for option in cpu_image.options if option.startswith("--base-image=")).partition("=")[
        2
    ]
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\nRUN echo seen $NO_PROXY\n", encoding="utf-8")
    command = ["docker", "buildx", "build", "--progress=plain", "--no-cache", "--output=type=cacheonly", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"seen {SECRET}.example.org" in done.stderr


@pytest.mark.slow
def test_a_cold_build_from_a_wheelhouse_without_a_network_gives_the_same_digest(
    cpu_image: Image, tmp_path: Path
) -> None:
    """Cold, cut off, and the wheels from a folder that was filled before: still the image that was built."""
    wheels = tmp_path / "wheels"
    given = [option for option in cpu_image.options if not option.startswith(("--tag", "--network"))]
    sources = [option for option in given if not option.startswith("--base-image")]
    collected = cpu_image.build("wheelhouse", *sources, wheels)
    assert collected.returncode == 0, collected.stderr
    assert SECRET not in collected.stdout + collected.stderr
    options = [option for option in given if not option.startswith(("--wheelhouse", "--index", "--ca"))]
    options += ["--network=none", f"--wheelhouse={wheels}", f"--against={cpu_image.digest}"]
    done = cpu_image.build("reproduce", *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"cpu: a cold build gives {cpu_image.digest}\n"
