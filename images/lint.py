"""House rules on specs, locks and rendered files: every finding at once, with its line, rule and cure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import yaml

from images.context import IN_IMAGE
from images.errors import EXIT_CHECK_FAILED, UserError
from images.faults import Fault, line_of
from images.launch.rules import RULES as MANIFEST_RULES
from images.launch.rules import check_manifest
from images.lint_locks import check_lock, check_requirements, check_stack
from images.lint_rendered import (
    HOST_NAME,
    SECRET_NAME,
    SECRET_VALUE,
    check_constraints,
    check_dockerfile,
    check_script,
    floating,
)
from images.lockfile import REQUIREMENTS
from images.spec import IMAGES, BackendSpec
from images.specfile import load_specs

RULES = {
    "base-digest": "every base image has a digest, or is `unresolved` and labelled so",
    "build-host": "no index, proxy or certificate of a build's host in ENV or ARG",
    "floating": "nothing takes what is new: no upgrade, no range, no installer without a lock",
    "frozen": "packages of a base are held at one exact version, and a replaced torch would be seen",
    "lock-address": "a lock holds no index, address or option",
    "lock-hash": "every package of a lock has its sha256",
    "lock-pin": "every package of a lock is exact",
    "no-latest": "no image tag that moves by design",
    "no-root": "an image ends as a plain user",
    "one-source": "every wheel comes from one place",
    "one-version": "no package in two versions for one environment",
    "pip-hashes": "pip installs locks only: hashes, no dependencies of its own choice",
    "piped-download": "no download runs unread",
    "secret": "nothing secret-like in ENV, ARG or an address",
    "system-package": "every package of the distribution has a version",
    "unverified-download": "every download is compared with a hash",
    **MANIFEST_RULES,
}


def lint(images: Path = IMAGES, image: str | None = None) -> list[str]:
    """Return every finding below images/, or only those that concern one image."""
    found = [] if image else [str(fault) for fault in _stacks(images)]
    try:
        specs = load_specs(images / "backends")
    except UserError as error:
        specs, found = {}, [*found, *error.message.splitlines()]
    for spec in specs.values():
        if image in (None, spec.image):
            found += map(str, _spec(images, spec))
    for folder in sorted((images / "locks").glob("*")):
        if image in (None, folder.name):
            found += map(str, _lock(images, folder))
    scripts = [images / name for name in IN_IMAGE if name.endswith(".sh") and (images / name).exists()]
    for path in [*sorted((images / "rendered").glob(f"{image or '*'}/*")), *scripts]:
        found += map(str, _rendered(_shown(images, path), path))
    for path in sorted((images.parent / "compose" / "rendered").glob(f"{image or '*'}/*.yaml")):
        shown = str(path.relative_to(images.parent))
        found += map(str, check_manifest(shown, path.read_text(encoding="utf-8")))
    # What is wrong in the main part of a spec is wrong in each of its variants: it is told once.
    return list(dict.fromkeys(found))


def require_clean(image: str | None = None) -> str:
    """Return a line that says what is clean; raises UserError (1) with every finding."""
    found = lint(image=image)
    if found:
        several = f"{len(found)} findings" if len(found) > 1 else "one finding"
        raise UserError("\n".join(found), f"lint: {several}; the cure stands behind each", EXIT_CHECK_FAILED)
    return f"lint: {image or 'specs, locks and rendered files'}: no finding by {len(RULES)} rules"


def _shown(images: Path, path: Path) -> str:
    return str(Path(images.name) / path.relative_to(images))


def _stacks(images: Path) -> Iterator[Fault]:
    # The other lists are what `lock` resolves: ranges belong there.
    path = images / "stack" / "dev.txt"
    if path.exists():
        yield from check_stack(_shown(images, path), path.read_text(encoding="utf-8"))


def _spec(images: Path, spec: BackendSpec) -> Iterator[Fault]:
    path = images / "backends" / f"{spec.name}.yaml"
    file, node = _shown(images, path), yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    assert node

    def fault(key: tuple[str, ...], rule: str, what: str, cure: str) -> Fault:
        return Fault(file, line_of(node, key), rule, f"{'.'.join(key)}: {what}", cure)

    if floating(spec.base.reference):
        what = f"{spec.base.reference} moves"
        yield fault(("base", "reference"), "no-latest", what, "name a version's tag")
    for name, value in spec.environment.items():
        key = ("environment", name)
        if SECRET_NAME.search(name) or SECRET_VALUE.search(value):
            yield fault(key, "secret", "stays in the image", "give it when the container runs")
        if HOST_NAME.match(name):
            yield fault(key, "build-host", "belongs to the build's host", "give it to build.py")
    local = [version for version in spec.torch_versions() if "+" in version]
    if spec.torch.index and not local:
        what = "the default index has this version too: two sources"
        yield fault(("torch", "index"), "one-source", what, "take the index out")
    if local and not spec.torch.index and not spec.torch.provided:
        what = f"{local[0]} is on no default index"
        yield fault(("torch", "version"), "one-source", what, "name the index that has it: torch.index")
    if spec.torch.build.cuda == "none" and not spec.refused_packages:
        what = "empty: a torch that pip replaced would not be seen"
        yield fault(("refused_packages",), "frozen", what, "name the packages the other build brings")


def _lock(images: Path, folder: Path) -> Iterator[Fault]:
    path, own = folder / REQUIREMENTS, folder / "lock.yaml"
    requirements = path.read_text(encoding="utf-8") if path.exists() else ""
    data = None
    if own.exists():
        text = own.read_text(encoding="utf-8")
        try:
            data = yaml.safe_load(text)
            yield from check_lock(_shown(images, own), text, requirements)
        except (yaml.YAMLError, AttributeError):
            yield Fault(_shown(images, own), 1, "lock-pin", "is not a lock", "build.py lock writes it")
    yield from check_requirements(_shown(images, path), requirements, data)


def _rendered(file: str, path: Path) -> Iterable[Fault]:
    if path.name not in ("Dockerfile", "constraints.txt") and path.suffix != ".sh":
        return []
    text = path.read_text(encoding="utf-8")
    if path.name == "Dockerfile":
        return check_dockerfile(file, text)
    return check_constraints(file, text) if path.suffix == ".txt" else check_script(file, text)
