"""Launches that Compose runs on a real engine: started, stopped, cut off, and what they leave."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import time
from dataclasses import dataclass
from pathlib import Path

from launched import launch_text

ENOUGH_SECONDS = 600


def docker(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run the engine's command line."""
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done


@dataclass(frozen=True)
class Composed:
    """One Compose file and the containers that it makes."""

    name: str
    program: Path
    file: Path

    def compose(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run Compose on the file."""
        command = [str(self.program), "-f", str(self.file), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=ENOUGH_SECONDS)

    def start(self) -> None:
        """Start it, and wait only for what its services wait for themselves."""
        done = self.compose("up", "-d")
        assert done.returncode == 0, done.stderr

    def up(self, *services: str) -> list[int]:
        """Run it to its end; returns the exit codes of these services.

        Not by `up --exit-code-from`: when a service that only comes first has ended, that stops the others.
        """
        self.start()
        return [self.ended(service) for service in services]

    def container(self, service: str = "train") -> str:
        return f"{self.name}-{service}-1"

    @property
    def network(self) -> str:
        """The network on which its nodes meet."""
        return f"{self.name}_nodes"

    def said(self, service: str = "train") -> str:
        """Return what a service has said so far."""
        done = docker("logs", self.container(service))
        return done.stdout + done.stderr

    def ended(self, service: str = "train") -> int:
        """Wait until a service has ended; returns its exit code."""
        return int(docker("wait", self.container(service)).stdout)

    def losses(self, service: str = "train") -> list[float]:
        """Return the losses that the run has written so far.

        Copied out: `exec` enters another file system where the engine itself lives in a changed root.
        """
        place = f"{self.container(service)}:/out/{self.name}/metrics.jsonl"
        done = subprocess.run(["docker", "cp", place, "-"], capture_output=True, check=False)
        if done.returncode:
            return []
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            file = archive.extractfile(archive.getmembers()[0])
            assert file is not None
            lines = file.read().decode().splitlines()
        rows = [json.loads(line) for line in lines if line.endswith("}")]
        return [row["loss"] for row in rows if "loss" in row]

    def trains(self, service: str = "train", steps: int = 3) -> None:
        """Wait until it has trained some steps."""
        deadline = time.monotonic() + ENOUGH_SECONDS
        while len(self.losses(service)) < steps:
            state = docker("inspect", "--format={{.State.Status}}", self.container(service)).stdout.strip()
            assert state == "running" and time.monotonic() < deadline, self.said(service)
            time.sleep(0.2)


@dataclass(frozen=True)
class Launches:
    """Makes launches of one image on one folder of the engine's host, with what all of them share.

    mark: ends their names, so that two runs of the tests on one engine do not meet.
    """

    mark: str
    image: str
    place: str
    program: Path
    files: Path

    def __call__(self, name: str, *words: str) -> Composed:
        """Return the launch of this name, nothing of it started."""
        name = f"{name}-{self.mark}"
        places = [
            f"--model={self.place}/model",
            f"--data={self.place}/rows.jsonl",
            f"--output={self.place}/out",
        ]
        shared = ["--train=num_generations=0", "--train=logging_steps=1", "--shm=64m", "--scratch=512m"]
        options = [*places, *shared, f"--image={self.image}", f"--name={name}", *words]
        file = self.files / f"{name}.yaml"
        file.write_text(launch_text(["--backend=cpu", "--as=compose", *options]), encoding="utf-8")
        return Composed(name, self.program, file)

    def remove(self) -> None:
        """Remove every container and network of them."""
        for file in self.files.glob("*.yaml"):
            Composed(file.stem, self.program, file).compose("down", "-t", "1")
