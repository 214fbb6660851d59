"""The lines that start an image: cards by the numbers found, groups by number, in all three forms."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml
from fake_roots import IMAGES, fake_root, needs_of, whole_host

from train.checks.host.lines import (
    Engine,
    compose_lines,
    device_options,
    docker_line,
    pod_lines,
    unknown_groups,
)
from train.checks.host.root import Root


def options(image: str, root: Root, engine: Engine | None = None, *conditions: str) -> list[str]:
    return device_options(needs_of(image), root, engine or Engine(), set(conditions), on_host=True)


def test_the_ascend_line_names_the_cards_found_and_the_host_s_group(tmp_path: Path) -> None:
    files = dict.fromkeys(["/dev/davinci2", "/dev/davinci5", "/usr/local/sbin/npu-smi", "/dev/devmm_svm"], "")
    root = fake_root(tmp_path, {**files, "/etc/group": "HwHiAiUser:x:1017:\n"})
    assert options("ascend", root) == [
        "--device=/dev/davinci2",
        "--device=/dev/davinci5",
        "--device=/dev/davinci_manager",
        "--device=/dev/hisi_hdc",
        "--device=/dev/devmm_svm",
        "--volume=/usr/local/Ascend/driver/lib64:/usr/local/Ascend/driver/lib64:ro",
        "--volume=/usr/local/Ascend/driver/version.info:/usr/local/Ascend/driver/version.info:ro",
        "--volume=/etc/ascend_install.info:/etc/ascend_install.info:ro",
        "--volume=/usr/local/sbin/npu-smi:/usr/local/sbin/npu-smi:ro",
        "--group-add=1017",
        "--shm-size=16g",
    ]


def test_an_engine_that_supports_the_backend_stands_for_nodes_and_mounts(tmp_path: Path) -> None:
    root = fake_root(tmp_path, {**whole_host("ascend"), "/etc/group": "HwHiAiUser:x:1017:\n"})
    found = options("ascend", root, Engine(runtimes=("runc", "ascend")))
    assert found == ["--runtime=ascend", "--env=ASCEND_VISIBLE_DEVICES=0,1", "--shm-size=16g"]


def test_a_node_s_group_is_named_whoever_brings_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = fake_root(tmp_path, whole_host("ascend"))
    monkeypatch.setattr(Root, "owner", lambda self, path: (0o660, 1017) if "davinci" in path else (0o666, 0))
    for engine in (Engine(), Engine(("ascend",))):
        assert "--group-add=1017" in options("ascend", root, engine)


@pytest.mark.parametrize(
    ("engine", "first"),
    [
        (Engine(), "--gpus=all"),
        (Engine(("runc", "nvidia"), ("nvidia.com/gpu",)), "--gpus=all"),
        (Engine(("runc",), ("nvidia.com/gpu",)), "--device=nvidia.com/gpu=all"),
    ],
)
def test_a_cuda_line_takes_what_the_engine_has(tmp_path: Path, engine: Engine, first: str) -> None:
    assert options("cuda", Root(tmp_path), engine) == [first, "--shm-size=16g"]


def test_a_vendor_s_exceptions_are_in_the_line_only_where_a_condition_holds(tmp_path: Path) -> None:
    root = Root(tmp_path)
    exceptions = {"--ulimit=memlock=-1:-1", "--security-opt=seccomp=unconfined", "--cap-add=SYS_PTRACE"}
    assert not exceptions & set(options("hygon", root))
    assert exceptions & set(options("hygon", root, None, "memlock_limited")) == {"--ulimit=memlock=-1:-1"}


@pytest.mark.parametrize("image", IMAGES)
def test_docker_run_is_one_command_of_a_shell(tmp_path: Path, image: str) -> None:
    root = fake_root(tmp_path, whole_host(image))
    text = "\n".join(docker_line(needs_of(image), options(image, root)))
    words = shlex.split(text.replace("\\\n", ""))  # as a shell joins lines
    assert words[:3] == ["docker", "run", "--rm"]
    assert words[-4:] == [f"isotune:{image}", "train", "verify", "--device"]
    assert all(word.startswith("--") for word in words[3:-4])


@pytest.mark.parametrize("image", IMAGES)
def test_compose_says_the_same_as_docker_run(tmp_path: Path, image: str) -> None:
    root = fake_root(tmp_path, whole_host(image))
    conditions = ("memlock_limited", "memory_policy_filtered", "tracing_limited")
    given = options(image, root, None, *conditions)
    service = yaml.safe_load("\n".join(compose_lines(needs_of(image), given)))["services"]["train"]
    assert service["image"] == f"isotune:{image}"
    assert service.get("devices", []) == [one[9:] for one in given if one.startswith("--device=")]
    assert service["volumes"][:-3] == [one[9:] for one in given if one.startswith("--volume=")]
    assert service["shm_size"] == needs_of(image).runtime["shm_size"]
    assert service["command"][0] == "train"
    if image == "hygon":
        assert service["ulimits"] == {"memlock": -1}
        assert service["cap_add"] == ["SYS_PTRACE"]
        assert service["security_opt"] == ["seccomp=unconfined"]


@pytest.mark.parametrize("image", IMAGES)
def test_a_pod_asks_for_as_many_cards_as_there_are_and_mounts_no_node(tmp_path: Path, image: str) -> None:
    needs = needs_of(image)
    pod = yaml.safe_load("\n".join(pod_lines(needs, fake_root(tmp_path, whole_host(image)))))
    (container,) = pod["spec"]["containers"]
    resource = needs.runtime["kubernetes"]["resource"]
    count = "2" if any("{index}" in node for node in needs.nodes) else "1"
    assert container.get("resources") == ({"limits": {resource: count}} if resource else None)
    mounted = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
    assert list(mounted) == [one["name"] for one in pod["spec"]["volumes"]]
    assert [path for path in mounted.values() if path.startswith("/dev/")] == ["/dev/shm"]
    assert "command" not in container  # the image's entrypoint sets the vendor's environment


def test_a_pod_has_the_driver_where_the_plugin_does_not_bring_it(tmp_path: Path) -> None:
    def paths(image: str) -> list[str]:
        pod = yaml.safe_load("\n".join(pod_lines(needs_of(image), Root(tmp_path))))
        return [one["hostPath"]["path"] for one in pod["spec"]["volumes"] if "hostPath" in one]

    assert "/usr/local/Ascend/driver/lib64" in paths("ascend")
    assert "/opt/hyhal" not in paths("hygon")


def test_a_container_s_own_etc_group_tells_nothing_of_its_host(tmp_path: Path) -> None:
    """Debian's `video` is 44, whatever the host's is: the host's shell is asked for the node's group."""
    needs, root = needs_of("hygon"), fake_root(tmp_path, {"/etc/group": "video:x:44:\n"})
    given = device_options(needs, root, Engine(), set())
    assert not any("44" in option for option in given)
    assert "supplementalGroups" not in "\n".join(pod_lines(needs, root))
    line = "\n".join(docker_line(needs, given + unknown_groups(needs, root, False)))
    assert '--group-add="$(stat -c %g /dev/kfd)" \\' in line
    assert unknown_groups(needs, root, True) == []
    assert unknown_groups(needs, fake_root(tmp_path, whole_host("hygon")), False) == []
    assert unknown_groups(needs_of("cpu"), root, False) == []


def test_a_pod_s_user_is_in_the_groups_that_own_the_driver(tmp_path: Path) -> None:
    root = fake_root(tmp_path, {"/etc/group": "video:x:44:\n"})
    assert yaml.safe_load("\n".join(pod_lines(needs_of("hygon"), root, on_host=True)))["spec"][
        "securityContext"
    ] == {"supplementalGroups": [44]}
