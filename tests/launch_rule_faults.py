"""Manifests with one fault each that only a house rule finds: what no schema says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.launch_faults import (
    RULES,
    Broken,
    container,
    job,
    last,
    mount,
    pod,
    policy,
    service,
    set_env,
    volume,
)

CARDS = "nvidia.com/gpu"


def cards(documents: list[Any], amount: Any) -> None:
    for side in ("requests", "limits"):
        container(documents)["resources"][side][CARDS] = amount


def broken(name: str, shape: str, rule: str, break_it: Callable[[list[Any]], object]) -> Broken:
    """Return a fault that a rule of our own finds."""
    return Broken(name, shape, RULES, break_it, rule=f"manifest-{rule}")


BY_RULES = [
    broken("half a card", "job", "cards", lambda d: cards(d, "0.5")),
    broken("a card without quotes", "job", "cards", lambda d: cards(d, 8)),
    broken(
        "more asked than allowed",
        "job",
        "cards",
        lambda d: container(d)["resources"]["limits"].update(cpu="1"),
    ),
    broken("no memory", "job", "cards", lambda d: container(d).pop("resources")),
    broken("a mount without its volume", "job", "volumes", lambda d: mount(d, "model").update(name="modell")),
    broken("a model that can be written", "job", "volumes", lambda d: mount(d, "model").pop("readOnly")),
    broken(
        "a volume that nobody mounts",
        "job",
        "volumes",
        lambda d: pod(d)["volumes"].append({"name": "x", "emptyDir": {}}),
    ),
    broken(
        "memory in lower case", "job", "room", lambda d: volume(d, "shm")["emptyDir"].update(medium="memory")
    ),
    broken("shm without a limit", "job", "room", lambda d: volume(d, "shm")["emptyDir"].pop("sizeLimit")),
    broken(
        "shm larger than the memory",
        "job",
        "room",
        lambda d: volume(d, "shm")["emptyDir"].update(sizeLimit="99Gi"),
    ),
    broken("no scratch", "job", "room", lambda d: container(d)["volumeMounts"].remove(mount(d, "tmp"))),
    broken("root", "job", "safe", lambda d: pod(d)["securityContext"].update(runAsUser=0)),
    broken("perhaps root", "job", "safe", lambda d: pod(d)["securityContext"].pop("runAsNonRoot")),
    broken("no seccomp", "job", "safe", lambda d: pod(d)["securityContext"].pop("seccompProfile")),
    broken("the host's network", "job", "safe", lambda d: pod(d).update(hostNetwork=True)),
    broken("a token", "job", "safe", lambda d: pod(d).pop("automountServiceAccountToken")),
    broken("a path of the host", "job", "safe", lambda d: volume(d, "tmp").update(hostPath={"path": "/tmp"})),
    broken("privileges", "job", "safe", lambda d: container(d)["securityContext"].update(privileged=True)),
    broken(
        "a capability",
        "job",
        "safe",
        lambda d: container(d)["securityContext"]["capabilities"].update(add=["X"]),
    ),
    broken(
        "a root to write to",
        "job",
        "safe",
        lambda d: container(d)["securityContext"].pop("readOnlyRootFilesystem"),
    ),
    broken(
        "a way up", "job", "safe", lambda d: container(d)["securityContext"].pop("allowPrivilegeEscalation")
    ),
    broken("the latest image", "job", "image", lambda d: container(d).update(image="isotune:latest")),
    broken("an image without a tag", "job", "image", lambda d: container(d).update(image="isotune")),
    broken("a command", "job", "exit", lambda d: container(d).update(command=["sh", "-c", "train"])),
    broken("a hub", "job", "offline", lambda d: set_env(d, "HF_HUB_OFFLINE", "0")),
    broken("too little grace", "job", "stop", lambda d: pod(d).update(terminationGracePeriodSeconds=270)),
    broken("the usual grace", "job", "stop", lambda d: pod(d).pop("terminationGracePeriodSeconds")),
    broken("no deadline", "job", "stop", lambda d: job(d).pop("activeDeadlineSeconds")),
    broken("a job that stays", "job", "stop", lambda d: job(d).pop("ttlSecondsAfterFinished")),
    broken("a JobSet that stays", "jobset", "stop", lambda d: last(d).pop("ttlSecondsAfterFinished")),
    broken("a restarting pod", "job", "exit", lambda d: pod(d).update(restartPolicy="OnFailure")),
    broken("disruptions that count", "job", "exit", lambda d: policy(d).pop(0)),
    broken(
        "a condition of any status", "job", "exit", lambda d: policy(d)[0]["onPodConditions"][0].pop("status")
    ),
    broken("disruptions looked at last", "job", "exit", lambda d: policy(d).append(policy(d).pop(0))),
    broken("75 that counts", "job", "exit", lambda d: policy(d).pop(1)),
    broken("78 tried again", "job", "exit", lambda d: policy(d)[2]["onExitCodes"]["values"].pop()),
    broken("codes not in order", "job", "exit", lambda d: policy(d)[2]["onExitCodes"]["values"].reverse()),
    broken("code 0", "job", "exit", lambda d: policy(d)[1]["onExitCodes"].update(values=[0, 75])),
    broken(
        "a rule for another container",
        "job",
        "names",
        lambda d: policy(d)[1]["onExitCodes"].update(containerName="x"),
    ),
    broken("a name with an underscore", "job", "names", lambda d: d[0]["metadata"].update(name="FT_Single")),
    broken("a name too long for a number", "job", "names", lambda d: d[0]["metadata"].update(name="a" * 60)),
    broken("a Service of another name", "indexed-job", "names", lambda d: pod(d).update(subdomain="other")),
    broken("a Service with an address", "indexed-job", "names", lambda d: d[0]["spec"].pop("clusterIP")),
    broken(
        "a Service of ready pods",
        "indexed-job",
        "names",
        lambda d: d[0]["spec"].pop("publishNotReadyAddresses"),
    ),
    broken(
        "a Service of other pods", "indexed-job", "names", lambda d: d[0]["spec"].update(selector={"a": "b"})
    ),
    broken(
        "a Service of another port", "indexed-job", "names", lambda d: d[0]["spec"]["ports"][0].update(port=1)
    ),
    broken("fewer pods than ranks", "indexed-job", "ranks", lambda d: job(d).update(parallelism=1)),
    broken("another number of nodes", "indexed-job", "ranks", lambda d: set_env(d, "PET_NNODES", "3")),
    broken("another address", "indexed-job", "ranks", lambda d: set_env(d, "PET_MASTER_ADDR", "localhost")),
    broken(
        "no rank",
        "indexed-job",
        "ranks",
        lambda d: set_env(d, "PET_NODE_RANK", "0") or container(d)["env"].pop(),
    ),
    broken("pods without numbers", "jobset", "ranks", lambda d: job(d).pop("completionMode")),
    broken(
        "another address in a JobSet", "jobset", "ranks", lambda d: set_env(d, "PET_MASTER_ADDR", "isotune-0")
    ),
    broken(
        "a JobSet that a deadline does not end",
        "jobset",
        "exit",
        lambda d: last(d)["failurePolicy"]["rules"][0].update(onJobFailureReasons=["PodFailurePolicy"]),
    ),
    broken("one pod tried again alone", "jobset", "exit", lambda d: job(d).update(backoffLimit=6)),
    broken("Trainer's container renamed", "trainjob", "names", lambda d: container(d).update(name="train")),
    broken(
        "Trainer's job without its label",
        "trainjob",
        "names",
        lambda d: d[0]["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["metadata"].clear(),
    ),
    broken(
        "a JobSet that Trainer makes anew",
        "trainjob",
        "stop",
        lambda d: d[0]["spec"]["template"]["spec"].update(ttlSecondsAfterFinished=1),
    ),
    broken("another runtime", "trainjob", "names", lambda d: last(d)["runtimeRef"].update(name="other")),
    broken("CPUs counted as cards", "trainjob", "ranks", lambda d: last(d)["trainer"].pop("numProcPerNode")),
    broken(
        "Trainer's own variables",
        "trainjob",
        "ranks",
        lambda d: last(d)["trainer"]["env"].append({"name": "PET_NNODES"}),
    ),
    broken("Trainer's command", "trainjob", "exit", lambda d: last(d)["trainer"].update(command=["train"])),
    broken(
        "nodes that the runtime lacks", "trainjob", "ranks", lambda d: last(d)["trainer"].update(numNodes=4)
    ),
    broken("half a gang", "volcano", "ranks", lambda d: last(d).update(minAvailable=1)),
    broken("no names of pods", "volcano", "ranks", lambda d: last(d)["plugins"].pop("svc")),
    broken(
        "no number of pods",
        "volcano",
        "ranks",
        lambda d: set_env(d, "PET_NODE_RANK", "0") or container(d)["env"].pop(),
    ),
    broken("Volcano's address", "volcano", "ranks", lambda d: set_env(d, "PET_MASTER_ADDR", "isotune-0")),
    broken(
        "an unknown action", "volcano", "exit", lambda d: last(d)["policies"][3].update(action="RestartJobb")
    ),
    broken("an unknown event", "volcano", "exit", lambda d: last(d)["policies"][3].update(event="PodEvictd")),
    broken(
        "an event and a code", "volcano", "exit", lambda d: last(d)["policies"][0].update(event="PodFailed")
    ),
    broken("events before codes", "volcano", "exit", lambda d: last(d)["policies"].reverse()),
    broken("65 tried again", "volcano", "exit", lambda d: last(d)["policies"].pop(1)),
    broken("a misspelt key of Volcano", "volcano", "names", lambda d: last(d).update(minAvailble=2)),
    broken("a service as root", "compose", "safe", lambda d: service(d).pop("user")),
    broken("a service's root to write to", "compose", "safe", lambda d: service(d).pop("read_only")),
    broken("a service with capabilities", "compose", "safe", lambda d: service(d).pop("cap_drop")),
    broken("a service with new privileges", "compose", "safe", lambda d: service(d).pop("security_opt")),
    broken("a privileged service", "compose", "safe", lambda d: service(d).update(privileged=True)),
    broken(
        "the latest image of a service", "compose", "image", lambda d: service(d).update(image="x:latest")
    ),
    broken("a shell", "compose", "exit", lambda d: service(d).update(command="train --help")),
    broken(
        "a service that asks a hub",
        "compose",
        "offline",
        lambda d: service(d)["environment"].pop("HF_HUB_OFFLINE"),
    ),
    broken("ten seconds of grace", "compose", "stop", lambda d: service(d).pop("stop_grace_period")),
    broken("a policy that is none", "compose", "exit", lambda d: service(d).update(restart="sometimes")),
    broken("a policy that tries again", "compose", "exit", lambda d: service(d).update(restart="always")),
    broken(
        "data that can be written",
        "compose",
        "volumes",
        lambda d: service(d)["volumes"][1].update(read_only=False),
    ),
    broken("a folder made as root's", "compose", "volumes", lambda d: service(d)["volumes"][0].pop("bind")),
    broken("a service without scratch", "compose", "room", lambda d: service(d).pop("tmpfs")),
    broken("64 MiB of shm", "compose", "room", lambda d: service(d).pop("shm_size")),
    broken(
        "a node too few",
        "compose",
        "ranks",
        lambda d: service(d)["environment"].update(
            PET_NNODES="2", PET_NODE_RANK="0", PET_MASTER_ADDR="train"
        ),
    ),
    broken(
        "nobody at the address",
        "compose",
        "ranks",
        lambda d: service(d)["environment"].update(
            PET_NNODES="1", PET_NODE_RANK="0", PET_MASTER_ADDR="node-7"
        ),
    ),
]
