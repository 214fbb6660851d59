"""What the container runs and sees, whatever starts it: arguments and environment."""

from __future__ import annotations

from images.launch.plan import Launch

RECIPE_TARGET = "/recipe/recipe.yaml"
# Read once, when a library is imported: they must be there before the process is.
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
# What the job itself sets, or the program that starts the nodes.
RESERVED = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
RESERVED |= {"GROUP_RANK", "ROLE_RANK", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", *OFFLINE}
# Options of the train command that options of a launch stand for.
OWN_FIELDS = {"model": "--model", "data": "--data", "output": "--output", "adapter": "--adapter"}
OWN_FIELDS |= {"eval_data": "--eval-data"}


def train_arguments(launch: Launch) -> list[str]:
    """Return the words after the entrypoint: no shell reads them."""
    options = launch.options
    words = ["train"]
    if launch.recipe:
        words += ["--config", RECIPE_TARGET if launch.recipe_file else launch.recipe]
    adapter = options.adapter or (None if launch.recipe else "lora")
    words += ["--adapter", adapter] if adapter else []
    for role in ("model", "data", "eval_data"):
        if role in launch.places:
            words += [OWN_FIELDS[role], launch.places[role].target]
    # A folder of its own: the root of a volume is seldom empty, and a restarted job finds its run again.
    words += ["--output", f"{launch.places['output'].target}/{options.name}"]
    if launch.nproc > 1 and not several(launch):
        words += ["--nproc", str(launch.nproc)]
    for key, value in options.train.items():
        words += ["--set", f"{key}={value}"]
    return words


def several(launch: Launch) -> bool:
    """Does the job span nodes? Then PET_ variables tell each process its place."""
    return launch.nodes > 1 or launch.shape == "trainjob"


def environment(launch: Launch) -> dict[str, str]:
    """Return the variables that are the same on every node."""
    options = launch.options
    values = dict(OFFLINE)
    values["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(launch.shutdown_seconds)
    if options.interface:
        values |= dict.fromkeys(launch.spec.runtime.interface_variables, options.interface)
    return values | options.env


def rendezvous(launch: Launch, address: str) -> dict[str, str]:
    """Return where and how many nodes meet; each node's own PET_NODE_RANK comes from what starts it."""
    return {
        "PET_NNODES": str(launch.nodes),
        "PET_NPROC_PER_NODE": str(launch.nproc),
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": str(launch.options.master_port),
    }


def verify_arguments() -> list[str]:
    """Return the words of the container that verifies image and device first."""
    return ["train", "verify"]
