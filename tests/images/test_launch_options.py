"""`build.py launch`: what is wrong, missing or without effect is refused, all at once, each with its cure."""

from __future__ import annotations

from pathlib import Path

import pytest
from build_command import BuildCommand
from launched import launch_text, launched, places, pod_of

from images.errors import UserError
from images.launch.options import PLACES, SHAPES, LaunchOptions


def refusal(*words: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        launch_text(list(words))
    assert caught.value.exit_code == 64
    return caught.value.message.splitlines()


def refused(backend: str, shape: str, *words: str) -> list[str]:
    return refusal(f"--backend={backend}", f"--as={shape}", *places(shape), *words)


def test_everything_that_is_wrong_is_told_at_once() -> None:
    found = refusal(
        *("--backend=cuda", "--as=indexed-job", "--model=models/qwen", "--data=pvc:Data", "--devces", "3"),
        *("--set", "foo=1", "--uid=0", "--ttl=xx", "--image=a b", "--node-rank=1", "--env=PET_NNODES=3"),
    )
    expected = [
        "--devces: is no option; did you mean --device",
        "--set foo: unknown key",
        "--output: is missing",
    ]
    expected += [
        "--uid 0",
        "--ttl xx: is no duration",
        "--image a b",
        "--model models/qwen: a pod has no path",
    ]
    expected += ["--data: 'pvc:Data' is no pvc:NAME", "--node-rank: has no effect with --as indexed-job"]
    expected += ["--env PET_NNODES: is set by the job itself"]
    for start in expected:
        assert any(line.startswith(start) for line in found), (start, found)


def test_without_a_backend_or_shape_the_rest_is_told_too() -> None:
    found = refusal("--model=x")
    assert [line.partition(":")[0] for line in found] == ["--backend", "--as", "--data", "--output"]
    assert refusal("--backend=cudaa", "--as=job", *places("job"))[0].startswith(
        "--backend: unknown backend 'cudaa'"
    )


def test_a_misspelt_shape_gets_a_suggestion() -> None:
    assert "did you mean trainjob?" in refused("cpu", "trainjobs")[0]


@pytest.mark.parametrize(
    ("backend", "shape", "words", "start"),
    [
        ("cuda", "job", ["--nodes=2"], "--nodes 2: a job is one pod"),
        ("cuda", "job", ["--set=nodes"], "--set nodes: has no `=`"),
        ("cuda", "job", ["--set=node_selector=a"], "--set node_selector=a: needs a key of its own"),
        ("cuda", "job", ["--set=nodes.a=2"], "--set nodes.a: nodes has no keys below it"),
        ("cuda", "job", ["--nodes=1", "--set=nodes=1"], "--nodes: is given twice"),
        ("cuda", "job", ["--env=A=1", "--set=env.A=2"], "--set env A: is given twice"),
        ("cuda", "job", ["--env=A"], "--env A: write KEY=VALUE"),
        ("cuda", "job", ["--env=1A=x"], "--env: '1A': no name of a variable"),
        ("cuda", "job", ["--devices=8", "--nproc=9"], "--nproc 9: more processes than the 8 cards"),
        ("cpu", "job", ["--devices=1"], "--devices: cpu has no cards; --nproc N"),
        ("cpu", "job", ["--resource=a.b/c"], "--resource: cpu has no cards"),
        ("cpu", "compose", ["--device-ids=0"], "--device-ids: cpu has no cards"),
        ("cuda", "compose", ["--device-ids=0,0"], "--device-ids 0,0: a card is a number from 0 on"),
        ("cuda", "compose", ["--device-ids=0,1", "--devices=3"], "--device-ids: 2 cards for 3"),
        ("cuda", "compose", ["--device-ids=0,1", "--nodes=2"], "--device-ids: several nodes on this host"),
        ("cuda", "compose", ["--node-rank=0"], "--node-rank 0: needs --master-addr"),
        ("cuda", "compose", ["--master-addr=a", "--nodes=2"], "--master-addr a: needs --node-rank"),
        ("cuda", "compose", ["--master-addr=a", "--node-rank=0"], "--master-addr a: there is one node"),
        (
            "cuda",
            "compose",
            ["--master-addr=a", "--node-rank=2", "--nodes=2"],
            "--node-rank 2: there are 2 nodes",
        ),
        ("cuda", "compose", ["--network=none", "--nodes=2"], "--network none: nodes could not talk"),
        ("cuda", "compose", ["--model=pvc:a"], "--model: is given twice"),
        ("cuda", "compose", ["--eval-data=pvc:a"], "--eval-data pvc:a: compose knows no claims"),
        ("cuda", "job", ["--eval-data=pvc:a/../b"], "--eval-data: 'pvc:a/../b': the path below a claim"),
        ("cuda", "job", ["--memory=16g"], "--memory 16g: /dev/shm (16g) is part of it"),
        ("cuda", "job", ["--memory=lots"], "--memory lots: is no size"),
        ("cuda", "job", ["--grace=5"], "--grace 5: should be greater than or equal to 60"),
        ("cuda", "job", ["--name=My_Job"], "--name My_Job: "),
        ("cuda", "job", ["--adapter=dora"], "--adapter dora: is none of 'lora' or 'oft'"),
        ("cuda", "job", ["--train=model=x"], "--train model: has an option of its own; use --model"),
        ("cuda", "job", ["--train=A=x"], "--train: 'A': no name of a recipe's field"),
        ("cuda", "job", ["--recipe=oftt"], "--recipe oftt: did you mean oft?"),
        ("cuda", "job", ["--recipe=none/there.yaml"], "--recipe none/there.yaml: No such file"),
        ("cuda", "job", ["--node-selector=a b=c"], "--node-selector: 'a b': no label of Kubernetes"),
        ("cuda", "job", ["--labels=a=b c"], "--labels: 'b c': no label of Kubernetes"),
        (
            "cuda",
            "job",
            ["--labels=app.kubernetes.io/instance=x"],
            "--labels app.kubernetes.io/instance: is set by the job itself",
        ),
        ("cuda", "job", ["--tolerations=a:Never"], "--tolerations: 'a:Never': is not KEY"),
        ("cuda", "job", ["--exceptions"], "--exceptions: the spec of cuda has none"),
        ("cuda", "volcano", ["--rank-table"], "--rank-table: the spec of cuda has none"),
        ("ascend", "compose", ["--optional=/dev/nul"], "--optional /dev/nul: is not in the spec of ascend"),
        (
            "cuda",
            "job",
            ["--interface=eth0", "--env=NCCL_SOCKET_IFNAME=eth1"],
            "--env NCCL_SOCKET_IFNAME: --interface sets it too",
        ),
    ],
)
def test_a_fault_is_told_with_its_value_and_cure(
    backend: str, shape: str, words: list[str], start: str
) -> None:
    found = refused(backend, shape, *words)
    assert [line for line in found if line.startswith(start)], found


@pytest.mark.parametrize("name", sorted(PLACES))
def test_an_option_without_effect_is_refused_and_elsewhere_taken(name: str) -> None:
    for shape in SHAPES:
        options, faults = {name}, refused("cuda", shape, "--nodes=0", *_given(name))
        without = [line for line in faults if "has no effect with" in line]
        assert bool(without) == (shape not in PLACES[name]), (shape, options, faults)


def _given(name: str) -> list[str]:
    flag = f"--{name.replace('_', '-')}"
    values = {"device_ids": "0", "node_rank": "0", "network": "none", "ttl": "1d", "deadline": "1d"}
    values |= {"resource": "a.b/c", "node_selector": "a=b", "labels": "a=b", "annotations": "a=b"}
    if LaunchOptions.model_fields[name].annotation is bool:
        return [flag]
    return [flag, values.get(name, "2000")]


@pytest.mark.parametrize("name", sorted(LaunchOptions.model_fields))
def test_every_field_is_described_and_has_a_flag(name: str) -> None:
    from images.launch.words import launch_parser

    info = LaunchOptions.model_fields[name]
    assert info.description
    assert f"--{name.replace('_', '-')}" in launch_parser().format_help()


def test_flags_and_set_say_the_same() -> None:
    flags = launched(
        "cuda", "job", "--devices=2", "--env=A.B_=1".replace(".", ""), "--no-spread", "--groups=44,109"
    )
    sets = [f"--set={word}" for word in ("devices=2", "env.AB_=1", "spread=false", "groups=44,109")]
    assert flags == launched("cuda", "job", *sets)


def test_a_label_s_key_may_hold_dots_and_slashes() -> None:
    documents = launched("hygon", "job", "--set=node_selector.hygon.com/hcu=true")
    assert documents[0]["spec"]["template"]["spec"]["nodeSelector"] == {"hygon.com/hcu": "true"}


def test_the_command_prints_to_stdout_and_errors_to_stderr(build_py: BuildCommand, tmp_path: Path) -> None:
    done = build_py("launch", "--backend=nvidia", "--as=job", *places("job"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("# Printed by: build.py launch --backend=nvidia --as=job")
    done = build_py("launch", "--backend=cpu", "--as=job")
    assert (done.returncode, done.stdout) == (64, "")
    assert done.stderr.count("error: ") == 3
    assert "hint: 3 faults; build.py launch --help" in done.stderr


def test_the_driver_s_files_are_mounted_where_no_runtime_of_the_vendor_does_it() -> None:
    without, mounted = launched("ascend", "job"), launched("ascend", "job", "--driver-mounts")
    assert not [volume for volume in pod_of(without)["volumes"] if "hostPath" in volume]
    volumes = {
        volume["name"]: volume["hostPath"]["path"]
        for volume in pod_of(mounted)["volumes"]
        if "hostPath" in volume
    }
    mounts = {entry["name"]: entry for entry in pod_of(mounted)["containers"][0]["volumeMounts"]}
    assert "/usr/local/Ascend/driver/lib64" in volumes.values()
    assert all(
        mounts[name]["readOnly"] and mounts[name]["mountPath"] == path for name, path in volumes.items()
    )
    assert "add --driver-mounts" in launch_text(["--backend=ascend", "--as=job", *places("job")])
    with pytest.raises(UserError, match="its plugin brings in"):
        launched("hygon", "job", "--driver-mounts")


@pytest.mark.parametrize("option", ["devices", "nodes", "nproc", "cpus", "uid", "retries", "grace"])
def test_a_number_that_no_cluster_has_is_refused(option: str) -> None:
    [fault] = refused("cuda", "indexed-job", f"--{option}=99999999999")
    assert fault.startswith(f"--{option} 99999999999: ")
    assert "less than or equal to" in fault


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("lora: {r: 8\nseed: 1\n", "is no YAML: line 2: "),
        ("- adapter\n", "is a list, a mapping of a recipe's fields is due"),
        ("a\0b: 1\n", "is no YAML: "),
        ("seed: 1\nseed: 2\n", "seed is given twice"),
        ("1: 2\n", "1 is no name of a field"),
        ("[1, 2]: 2\n", "is no YAML: "),
    ],
)
def test_a_recipe_that_a_run_could_not_read_is_told_at_once(tmp_path: Path, text: str, what: str) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(text, encoding="utf-8")
    [fault] = refused("cuda", "job", f"--recipe={recipe}")
    assert fault.startswith(f"--recipe {recipe}: {what}")
