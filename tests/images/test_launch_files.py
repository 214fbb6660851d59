"""`build.py launch`: what the file of each shape says, for every backend."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from launched import SPECS, container_of, launch_text, launched, places, pod_of, service_of, variables_of

from images.launch.docker_options import extras
from images.launch.examples import EXAMPLES
from images.launch.options import SHAPES

KUBERNETES = [shape for shape in SHAPES if shape != "compose"]


@pytest.mark.parametrize(
    "path", sorted(EXAMPLES.rglob("*.yaml")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_an_example_is_what_the_command_in_its_head_prints(path: Path) -> None:
    head, *rest = path.read_text(encoding="utf-8").splitlines()[1:]
    words = shlex.split(head.removeprefix("# build.py launch "))
    assert launch_text(words).splitlines()[1:] == rest


@pytest.mark.parametrize("name", sorted(SPECS))
def test_a_spec_s_docker_options_all_have_words_in_a_manifest(name: str) -> None:
    runtime = SPECS[name].runtime
    options = [*runtime.docker_options, *(item.option for item in runtime.conditional_options)]
    assert extras(options).unknown == []


@pytest.mark.parametrize("shape", SHAPES)
def test_the_train_command_gets_what_was_asked_for_word_by_word(shape: str) -> None:
    more = ["--adapter=oft", "--name=ft", "--train=oft.oft_block_size=64", "--set=train.learning_rate=1e-4"]
    documents = launched("cpu", shape, *more)
    words = service_of(documents)["command"] if shape == "compose" else container_of(documents)["args"]
    assert words == [
        *(
            "train",
            "--adapter",
            "oft",
            "--model",
            "/model",
            "--data",
            "/data/train.jsonl",
            "--output",
            "/out/ft",
        ),
        *("--set", "oft.oft_block_size=64", "--set", "learning_rate=1e-4"),
    ]


def test_a_folder_of_data_is_mounted_as_one_and_a_file_keeps_its_name() -> None:
    text = launch_text(["--backend=cpu", "--as=job", "--model=pvc:m", "--data=pvc:d/rows", "--output=pvc:o"])
    container = container_of(list(yaml.safe_load_all(text)))
    assert container["args"][5:7] == ["--data", "/data"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts["/data"] == {"name": "data", "mountPath": "/data", "subPath": "rows", "readOnly": True}
    assert "subPath" not in mounts["/model"]


def test_a_claim_used_twice_is_one_volume_and_not_read_only_where_results_go() -> None:
    words = ["--model=pvc:all/model", "--data=pvc:all/rows.jsonl", "--output=pvc:all/runs"]
    text = launch_text(["--backend=cpu", "--as=job", *words])
    pod = pod_of(list(yaml.safe_load_all(text)))
    claims = [volume for volume in pod["volumes"] if "persistentVolumeClaim" in volume]
    assert claims == [{"name": "model", "persistentVolumeClaim": {"claimName": "all"}}]
    read_only = {
        mount["mountPath"]: mount.get("readOnly", False) for mount in pod["containers"][0]["volumeMounts"]
    }
    assert (read_only["/model"], read_only["/data/rows.jsonl"], read_only["/out"]) == (True, True, False)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_recipe_of_the_user_s_own_travels_along(shape: str, tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("adapter: oft\nlearning_rate: 1e-4  # $HOME\n", encoding="utf-8")
    documents = launched("cpu", shape, f"--recipe={recipe}")
    words = service_of(documents)["command"] if shape == "compose" else container_of(documents)["args"]
    assert words[1:3] == ["--config", "/recipe/recipe.yaml"]
    assert "--adapter" not in words
    if shape == "compose":
        assert {volume["source"] for volume in service_of(documents)["volumes"]} >= {str(recipe)}
    else:
        assert documents[0]["data"] == {"recipe.yaml": recipe.read_text(encoding="utf-8")}
        (volume,) = [volume for volume in pod_of(documents)["volumes"] if volume["name"] == "recipe"]
        assert volume["configMap"]["name"] == documents[0]["metadata"]["name"]


def test_a_shipped_recipe_goes_by_name() -> None:
    assert container_of(launched("cpu", "job", "--recipe=oft"))["args"][:3] == ["train", "--config", "oft"]


@pytest.mark.parametrize("shape", SHAPES)
def test_processes_of_one_node_are_an_option_and_of_several_nodes_variables(shape: str) -> None:
    documents = launched("cuda", shape, "--devices=4")
    compose = shape == "compose"
    words = service_of(documents)["command"] if compose else container_of(documents)["args"]
    # Trainer itself tells each process its place, on one node too.
    assert ("--nproc" in words) == (shape != "trainjob")
    if shape != "job":
        documents = launched("cuda", shape, "--devices=4", "--nodes=3")
        words = service_of(documents, "node-0")["command"] if compose else container_of(documents)["args"]
        assert "--nproc" not in words


@pytest.mark.parametrize(
    ("shape", "address", "rank"),
    [
        ("indexed-job", "ft-0.ft", "metadata.annotations['batch.kubernetes.io/job-completion-index']"),
        ("jobset", "ft-node-0-0.ft", "metadata.annotations['batch.kubernetes.io/job-completion-index']"),
        ("volcano", "ft-worker-0.ft", "metadata.annotations['volcano.sh/task-index']"),
    ],
)
def test_nodes_are_told_their_number_and_where_to_meet(shape: str, address: str, rank: str) -> None:
    found = variables_of(
        launched("hygon", shape, "--devices=4", "--nodes=3", "--name=ft", "--master-port=3000")
    )
    assert {name: value for name, value in found.items() if name.startswith("PET_")} == {
        "PET_NNODES": "3",
        "PET_NPROC_PER_NODE": "4",
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": "3000",
        "PET_NODE_RANK": rank,
    }


def test_trainer_is_told_the_number_of_processes_and_nothing_that_it_sets_itself() -> None:
    runtime, job = launched("ascend", "trainjob", "--devices=8", "--nodes=2")
    assert (job["spec"]["trainer"]["numProcPerNode"], job["spec"]["trainer"]["numNodes"]) == (8, 2)
    assert not [entry for entry in job["spec"]["trainer"]["env"] if entry["name"].startswith("PET_")]
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert job["spec"]["trainer"]["resourcesPerNode"]["limits"]["huawei.com/Ascend910"] == "8"


def test_incidents_are_counted_as_each_controller_counts_them() -> None:
    words = ["--nodes=4", "--retries=2"]
    assert launched("cuda", "indexed-job", *words)[1]["spec"]["backoffLimit"] == 8
    assert launched("cuda", "job", "--retries=2")[0]["spec"]["backoffLimit"] == 2
    jobset = launched("cuda", "jobset", *words)[0]["spec"]
    assert jobset["failurePolicy"]["maxRestarts"] == 2
    assert jobset["replicatedJobs"][0]["template"]["spec"]["backoffLimit"] == 0
    assert launched("cuda", "volcano", *words)[0]["spec"]["maxRetry"] == 2


@pytest.mark.parametrize("shape", KUBERNETES)
def test_a_pod_s_options_arrive(shape: str) -> None:
    words = ["--uid=2000", "--gid=3000", "--groups=44,109", "--priority=high", "--runtime=own", "--shm=4g"]
    words += ["--tolerations=a=b:NoSchedule,c", "--node-selector=zone=x", "--grace=100", "--cpus=3"]
    words += ["--memory=64g", "--labels=team=a", "--annotations=x.y/z=1", "--namespace=ns"]
    documents = launched("cuda", shape, *words)
    pod = pod_of(documents)
    context = pod["securityContext"]
    assert [context[key] for key in ("runAsUser", "runAsGroup", "fsGroup")] == [2000, 3000, 3000]
    assert context["supplementalGroups"] == [44, 109]
    assert (pod["priorityClassName"], pod["runtimeClassName"]) == ("high", "own")
    assert pod["tolerations"] == [
        {"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"},
        {"key": "c", "operator": "Exists"},
    ]
    assert (pod["nodeSelector"], pod["terminationGracePeriodSeconds"]) == ({"zone": "x"}, 100)
    limits = {"cpu": "3", "memory": "64Gi", "nvidia.com/gpu": "1"}
    assert pod["containers"][0]["resources"] == {"requests": limits, "limits": limits}
    sizes = {volume["name"]: volume.get("emptyDir", {}).get("sizeLimit") for volume in pod["volumes"]}
    assert sizes["shm"] == "4Gi"
    own = documents[-1]["metadata"]
    assert (own["namespace"], own["labels"]["team"], own["annotations"]) == ("ns", "a", {"x.y/z": "1"})


@pytest.mark.parametrize("shape", ["job", "indexed-job", "jobset", "trainjob"])
def test_kueue_takes_a_label_and_volcano_its_queue(shape: str) -> None:
    assert launched("cpu", shape, "--queue=q")[-1]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "q"
    assert launched("cpu", "volcano", "--queue=q")[0]["spec"]["queue"] == "q"


@pytest.mark.parametrize("shape", SHAPES)
def test_verification_runs_before_with_the_same_cards(shape: str) -> None:
    documents = launched("cuda", shape, "--verify", "--devices=2")
    if shape == "compose":
        verify, train = service_of(documents, "verify"), service_of(documents)
        assert train["depends_on"] == {"verify": {"condition": "service_completed_successfully"}}
        assert (verify["command"], verify["deploy"]) == (["train", "verify"], train["deploy"])
        assert "volumes" not in verify
    else:
        (verify,) = pod_of(documents)["initContainers"]
        assert (verify["args"], verify["resources"]) == (
            ["train", "verify"],
            container_of(documents)["resources"],
        )


def test_the_network_card_is_named_by_the_backend_s_own_variables() -> None:
    found = variables_of(launched("ascend", "job", "--interface=eth0"))
    assert (found["HCCL_SOCKET_IFNAME"], found["GLOO_SOCKET_IFNAME"]) == ("eth0", "eth0")
    assert "HCCL_SOCKET_IFNAME" not in variables_of(launched("hygon", "job", "--interface=eth0"))


def test_volcano_gets_the_labels_and_cards_of_the_backend_s_plugin() -> None:
    (job,) = launched("ascend", "volcano", "--devices=8", "--nodes=2", "--resource=huawei.com/npu")
    template = job["spec"]["tasks"][0]["template"]
    assert job["metadata"]["labels"]["ring-controller.atlas"] == "ascend-910b"
    assert template["metadata"]["labels"]["ring-controller.atlas"] == "ascend-910b"
    assert variables_of([job])["ASCEND_VISIBLE_DEVICES"] == "metadata.annotations['huawei.com/npu']"
    (job,) = launched("ascend", "volcano", "--no-annotated-devices")
    assert "ASCEND_VISIBLE_DEVICES" not in variables_of([job])


def test_the_rank_table_is_a_map_that_the_operator_fills() -> None:
    table, job = launched("ascend", "volcano", "--rank-table", "--name=ft")
    assert (table["metadata"]["name"], list(table["data"])) == ("rings-config-ft", ["hccl.json"])
    assert table["metadata"]["labels"]["ring-controller.atlas"] == "ascend-910b"
    (mount,) = [m for m in container_of([job])["volumeMounts"] if m["name"] == "rank-table"]
    assert mount["mountPath"] == "/user/serverid/devindex/config"


@pytest.mark.parametrize("shape", ["compose", "job"])
def test_the_vendor_s_exceptions_are_off_until_asked_for(shape: str) -> None:
    assert "SYS_PTRACE" not in str(launched("hygon", shape))
    documents = launched("hygon", shape, "--exceptions")
    if shape == "compose":
        service = service_of(documents)
        assert service["cap_add"] == ["SYS_PTRACE"]
        assert service["security_opt"] == ["no-new-privileges:true", "seccomp=unconfined"]
        assert service["ulimits"] == {"memlock": {"soft": -1, "hard": -1}}
    else:
        assert pod_of(documents)["securityContext"]["seccompProfile"] == {"type": "Unconfined"}
        assert container_of(documents)["securityContext"]["capabilities"]["add"] == ["SYS_PTRACE"]
        assert "ulimits (memlock)" in launch_text(
            ["--backend=hygon", "--as=job", *places("job"), "--exceptions"]
        )


def test_a_kubernetes_variable_is_never_put_in_place_of_text() -> None:
    container = container_of(launched("cpu", "job", "--env=A=$(HOME)", "--train=name=$(B)"))
    assert {"name": "A", "value": "$$(HOME)"} in container["env"]
    assert container["args"][-1] == "name=$$(B)"


def test_notes_tell_what_the_reader_has_to_do() -> None:
    def notes(*words: str) -> str:
        text = launch_text([*words])
        return "\n".join(line for line in text.splitlines() if line.startswith("#"))

    digest = "--image=r.example/isotune@sha256:" + "0" * 64
    assert "without a digest" in notes("--backend=cpu", "--as=job", *places("job"))
    assert "digest" not in notes("--backend=cpu", "--as=job", *places("job"), digest).replace(digest, "")
    hygon = ["--backend=hygon", "--as=compose", *places("compose")]
    assert "stat -c %g /dev/kfd" in notes(*hygon)
    assert "stat" not in notes(*hygon, "--groups=44")


def _nodes(*words: str) -> dict[str, Any]:
    return launched("ascend", "compose", *words)[0]["services"]


def test_nodes_on_one_host_have_cards_of_their_own_and_an_inner_network() -> None:
    (document,) = launched("ascend", "compose", "--nodes=2", "--devices=2")
    first, second = document["services"].values()
    assert [path for path in second["devices"] if "davinci" in path][:2] == [
        "/dev/davinci2:/dev/davinci2",
        "/dev/davinci3:/dev/davinci3",
    ]
    assert "/dev/davinci_manager:/dev/davinci_manager" in first["devices"]
    assert document["networks"] == {"nodes": {"internal": True}}
    assert [node["environment"]["PET_NODE_RANK"] for node in (first, second)] == ["0", "1"]
    assert second["environment"]["PET_MASTER_ADDR"] == "node-0"


def test_one_node_of_several_hosts_meets_the_others_over_the_host_s_network() -> None:
    words = ["--nodes=4", "--devices=8", "--node-rank=3", "--master-addr=10.0.0.1", "--interface=eth0"]
    (name, node), *others = _nodes(*words).items()
    assert (name, others, node["network_mode"]) == ("node-3", [], "host")
    assert node["environment"]["PET_MASTER_ADDR"] == "10.0.0.1"
    assert "/dev/davinci0:/dev/davinci0" in node["devices"]


def test_cards_are_chosen_as_the_backend_can() -> None:
    hygon = service_of(launched("hygon", "compose", "--device-ids=2,3"))
    assert hygon["environment"]["HIP_VISIBLE_DEVICES"] == "2,3"
    (request,) = service_of(launched("cuda", "compose", "--device-ids=2,3"))["deploy"]["resources"][
        "reservations"
    ]["devices"]
    assert request == {"capabilities": ["gpu"], "device_ids": ["2", "3"]}
    assert "devices" not in service_of(launched("cpu", "compose"))


def test_optional_nodes_go_along_and_optional_mounts_when_named() -> None:
    usual = service_of(launched("ascend", "compose"))
    assert "/dev/devmm_svm:/dev/devmm_svm" in usual["devices"]
    assert "/usr/local/dcmi" not in {volume["target"] for volume in usual["volumes"]}
    named = service_of(launched("ascend", "compose", "--optional=/usr/local/dcmi"))
    assert "/dev/devmm_svm:/dev/devmm_svm" not in named["devices"]
    assert "/usr/local/dcmi" in {volume["target"] for volume in named["volumes"]}
    assert "/dev/devmm_svm" not in str(service_of(launched("ascend", "compose", "--optional=none")))
