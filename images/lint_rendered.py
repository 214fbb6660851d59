"""House rules on rendered files: what a Dockerfile or a script in the image may not do."""

from __future__ import annotations

import re
from collections.abc import Iterator

from images.faults import Fault
from images.instructions import Instruction, parse_dockerfile, parse_script
from images.spec_types import UNRESOLVED

FLOATING_TAGS = {"latest", "nightly", "edge", "main", "master", "stable", "dev"}
SECRET_NAME = re.compile(
    r"(?:^|_)(?:PASSWORD|PASSWD|SECRET|TOKEN|CREDENTIALS?|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY)(?:_|$)",
    re.IGNORECASE,
)
SECRET_VALUE = re.compile(r"://[^/\s:@'\"]+:[^/\s@'\"]+@")
# What belongs to the host or network of a build, not to its image.
HOST_NAME = re.compile(
    r"^(?:\w+_proxy|pip_(?:extra_)?index_url|pip_trusted_host|pip_cert|uv_\w*index\w*|ssl_cert_\w+"
    r"|requests_ca_bundle|curl_ca_bundle)$",
    re.IGNORECASE,
)
# A command of a RUN: up to the next `;`, `&` or `|`.
REST = r"(?P<rest>[^;&|]*)"
PIP = re.compile(rf"\bpip[\d.]*(?:\s+-\S+)*\s+install\b{REST}")
UPGRADE = re.compile(
    r"(?:^|\s)(?:-[a-zA-Z]*U[a-zA-Z]*|--upgrade|--pre)(?:\s|$)|[\w\]]\s*(?:[<>~!]=|[<>])\s*\d"
)
OTHER_INSTALLER = re.compile(
    r"\b(?:(?:pipx|conda|mamba|npm|gem|cargo|go)\s+(?:\S+\s+)?install|git\s+clone|apt-get\s+(?:dist-)?upgrade"
    r"|apt\s+(?:full-)?upgrade)\b"
)
SYSTEM = re.compile(rf"\bapt(?:-get)?(?:\s+-\S+)*\s+install\b{REST}")
OTHER_SYSTEM = re.compile(r"\b(?:apk\s+add|(?:dnf|yum|microdnf)\s+install|zypper\s+in(?:stall)?)\b")
# At the place of a command only: a package may have the same name.
FETCH = re.compile(r"(?:^(?:\s*--\S+)*|[;&|({]|\bthen\b|\bdo\b|\belse\b)\s*(?P<fetch>(?:curl|wget)\s[^;]*)")
PIPED = re.compile(r"\|\s*(?:sudo\s+)?(?:\S*/)?(?:ba|da|z)?sh\b|\|\s*(?:\S*/)?python[\d.]*\b")
SUBSTITUTED = re.compile(
    r"(?:\bsh\s+-c\s+[\"']?\$\(|\beval\s+[\"']?\$\(|<\(|\bsource\s+<\()\s*(?:curl|wget)\b"
)


def check_dockerfile(file: str, text: str) -> list[Fault]:
    """Return every finding of a Dockerfile."""
    instructions = parse_dockerfile(text)
    faults = list(_bases(file, instructions))
    faults += _last_user(file, instructions)
    for instruction in instructions:
        faults += _settings(file, instruction)
        faults += _commands(file, instruction)
    return sorted(faults, key=lambda fault: fault.line)


def check_script(file: str, text: str) -> list[Fault]:
    """Return every finding of a shell script."""
    return [fault for part in parse_script(text) for fault in _commands(file, part)]


def check_constraints(file: str, text: str) -> Iterator[Fault]:
    """Yield every constraint that names no exact version."""
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#") and not re.match(r"^[\w.-]+==\d\S*$", line):
            yield Fault(file, number, "frozen", f"{line!r} names no exact version", "write name==version")


def floating(reference: str) -> bool:
    """Tell whether an image's name says nothing exact: no digest, and no tag or one that moves by design."""
    name, _, digest = reference.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return not digest and (not tag or tag.lower() in FLOATING_TAGS)


def _bases(file: str, instructions: list[Instruction]) -> Iterator[Fault]:
    """Yield images that are not pinned. One without a digest is allowed if the image's label says so."""
    defaults: dict[str, str] = {}
    stages = {"scratch"}
    said = any(
        part.name == "ARG" and part.text == f"ISOTUNE_BASE_DIGEST={UNRESOLVED}" for part in instructions
    )
    for part in instructions:
        if part.name == "ARG":
            name, _, value = part.text.strip().partition("=")
            defaults.setdefault(name, value.strip("\"'"))
        named = [(part.line, word) for word in part.text.split()[:1] if part.name == "FROM"]
        named += [
            (part.line_at(match.start()), match[1])
            for match in re.finditer(r"(?:^|[\s,])(?:--)?from=([^\s,]+)", part.text)
            if part.name in ("COPY", "ADD", "RUN")
        ]
        if part.name == "FROM":
            # --platform=... comes before the name.
            named = [(part.line, word) for word in part.text.split() if not word.startswith("--")][:1]
        for line, word in named:
            yield from _image(file, line, _expanded(word, defaults), stages, said)
        if part.name == "FROM" and (alias := re.search(r"\sAS\s+(\S+)\s*$", part.text, re.IGNORECASE)):
            stages.add(alias[1])


def _image(file: str, line: int, reference: str, stages: set[str], said: bool) -> Iterator[Fault]:
    if reference in stages or reference.isdigit():
        return
    if floating(reference):
        yield Fault(file, line, "no-latest", f"{reference} moves", "name a version's tag and its digest")
    if not re.search(r"@sha256:[0-9a-f]{64}$", reference) and not said:
        cure = "add @sha256:..., or set base.digest of the spec to `unresolved`, which labels the image"
        yield Fault(file, line, "base-digest", f"{reference} has no digest", cure)


def _expanded(word: str, defaults: dict[str, str]) -> str:
    return re.sub(r"\$\{?(\w+)\}?", lambda match: defaults.get(match[1], match[0]), word)


def _last_user(file: str, instructions: list[Instruction]) -> Iterator[Fault]:
    """Yield a finding if the last stage ends as root, or names no user at all."""
    line, user = 1, ""
    for part in instructions:
        if part.name == "FROM":
            line, user = part.line, ""
        elif part.name == "USER":
            line, user = part.line, part.text.strip()
    if user.partition(":")[0] in ("", "0", "root"):
        what = f"ends as {user or 'the user of its base'}"
        yield Fault(file, line, "no-root", what, "end with USER 1000:0")


def _settings(file: str, part: Instruction) -> Iterator[Fault]:
    """Yield settings that an image must not carry: they can be read in its configuration and history."""
    for match in SECRET_VALUE.finditer(part.text):
        cure = "mount it: RUN --mount=type=secret"
        yield Fault(file, part.line_at(match.start()), "secret", "an address with a password", cure)
    if part.name not in ("ENV", "ARG"):
        return
    # `ENV NAME=value ...`, or the old `ENV NAME value` and `ARG NAME`.
    names = list(re.finditer(r"(?:^|\s)([A-Za-z_]\w*)=", part.text))
    for found in names or re.finditer(r"^\s*(\w+)", part.text):
        name, line = found[1], part.line_at(found.start(1))
        if SECRET_NAME.search(name):
            cure = "mount it: RUN --mount=type=secret"
            yield Fault(file, line, "secret", f"{part.name} {name} stays in the image", cure)
        if HOST_NAME.match(name):
            cure = "give it to build.py: --index-url, --ca-bundle; or set it when the container runs"
            yield Fault(file, line, "build-host", f"{part.name} {name} belongs to the build's host", cure)


def _commands(file: str, part: Instruction) -> Iterator[Fault]:
    if part.name == "ADD" and "://" in part.text and "--checksum=" not in part.text:
        cure = "add --checksum=sha256:..., or bring the file with the context"
        yield Fault(file, part.line, "unverified-download", "ADD of an address without a checksum", cure)
    if part.name not in ("RUN", "CMD", "ENTRYPOINT", "SHELL"):
        return
    for rule in (_pip, _other_installers, _system_packages, _downloads):
        for offset, name, what, cure in rule(part.text):
            yield Fault(file, part.line_at(offset), name, what, cure)


Found = Iterator[tuple[int, str, str, str]]


def _pip(text: str) -> Found:
    for match in PIP.finditer(text):
        lacking = [o for o in ("--require-hashes", "--no-deps") if o not in match["rest"].split()]
        if lacking:
            yield match.start(), "pip-hashes", f"pip install without {' '.join(lacking)}", "install a lock"
        if UPGRADE.search(match["rest"]):
            what = f"pip install{' '.join(['', *match['rest'].split()])[:60]} takes what is new"
            yield match.start(), "floating", what, "name exact versions in the stack, then build.py lock"


def _other_installers(text: str) -> Found:
    for match in OTHER_INSTALLER.finditer(text):
        cure = "bring it by a lock, or as a file of the context"
        yield match.start(), "floating", f"`{' '.join(match[0].split())}` takes what is new", cure


def _system_packages(text: str) -> Found:
    cure = "name it with its version and a dated archive: system_packages of the spec"
    for match in SYSTEM.finditer(text):
        words = [word for word in match["rest"].split() if not word.startswith(("-", "$", ">"))]
        for word in words:
            if "=" not in word:
                yield match.start(), "system-package", f"{word} has no version", cure
    for match in OTHER_SYSTEM.finditer(text):
        yield match.start(), "system-package", f"`{' '.join(match[0].split())}` pins nothing", cure


def _downloads(text: str) -> Found:
    cure = "bring it as a file of the context, with its hash"
    unread = [match.span() for match in SUBSTITUTED.finditer(text)]
    for start, _ in unread:
        yield start, "piped-download", "a download runs unread", cure
    for match in FETCH.finditer(text):
        if any(start <= match.start("fetch") < end for start, end in unread):
            continue
        if PIPED.search(match["fetch"]):
            yield match.start("fetch"), "piped-download", "a download runs unread", cure
        elif not re.search(r"\bsha(?:256|512)sum\b", text):
            yield match.start("fetch"), "unverified-download", "a download is not compared with a hash", cure
