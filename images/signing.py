"""Sign an image by cosign, and compare a signature: keys are files, no service on the network is asked."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from images.errors import EXIT_CHECK_FAILED, EXIT_DATA, EXIT_UNAVAILABLE, EXIT_USAGE, UserError
from images.extract import extract
from images.provenance import PROVENANCE

SIGNATURE = f"{PROVENANCE}.sig"
AGAIN = "build.py inventory writes it"


def sign(target: str, key: Path) -> str:
    """Sign a folder that `inventory` wrote, or an image in a registry; returns what was signed.

    Of a folder the provenance is signed: it has the digests of the image and of the other files.
    Raises UserError: 69 without cosign, 1 with cosign's words.
    """
    folder = _folder(target)
    if folder is None:
        _cosign("sign", f"--key={key}", *_silent(), "--yes", _by_digest(target))
        return f"signed {target}"
    file, signature = folder / PROVENANCE, folder / SIGNATURE
    _statement(folder)
    command = ["sign-blob", f"--key={key}", *_silent(), "--yes", f"--output-signature={signature}"]
    _cosign(*command, str(file))
    return f"signed {file}: {signature}"


def verify_signature(target: str, key: Path, image: str | None = None) -> list[str]:
    """Compare a signature, and in a folder all that the provenance has a digest of; returns lines.

    image: a reference that the engine has, or oci:PATH, which must be the one that was signed.
    Raises UserError: 69 without cosign, 1 with all that differs.
    """
    folder = _folder(target)
    if folder is None:
        if image:
            raise UserError("--image: has no effect with an image in a registry", exit_code=EXIT_USAGE)
        _cosign("verify", f"--key={key}", *_plain(), "--insecure-ignore-tlog=true", _by_digest(target))
        return [f"{target}: signed with the key of {key}"]
    document = _statement(folder)
    command = ["verify-blob", f"--key={key}", f"--signature={folder / SIGNATURE}"]
    _cosign(*command, *_plain(), "--insecure-ignore-tlog=true", str(folder / PROVENANCE))
    faults = _changed(folder, document)
    signed = f"sha256:{document['subject'][0]['digest']['sha256']}"
    digests = [one.digest for one in extract(image, [])] if image else [signed]
    if signed not in digests:
        faults.append(f"{image}: is {', '.join(digests)}, {signed} was signed")
    if faults:
        hint = "these are not the files or not the image that were signed"
        raise UserError("\n".join(faults), hint, EXIT_CHECK_FAILED)
    said = f"{folder / PROVENANCE}: signed with the key of {key}"
    compared = f"{image}: {signed} is what was signed"
    return [said, compared if image else f"no image was compared (--image): {signed} was signed"]


def _folder(target: str) -> Path | None:
    return Path(target) if Path(target).is_dir() else None


def _by_digest(target: str) -> str:
    if "@sha256:" not in target:
        hint = "name a folder of `build.py inventory`, or an image in a registry as NAME@sha256:..."
        raise UserError(f"{target}: is no folder, and no image by digest", hint, EXIT_USAGE)
    return target


def _statement(folder: Path) -> dict[str, Any]:
    try:
        document = json.loads((folder / PROVENANCE).read_text(encoding="utf-8"))
        document["subject"][0]["digest"]["sha256"], document["predicate"]["runDetails"]["byproducts"]
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise UserError(f"{folder / PROVENANCE}: is no provenance: {error}", AGAIN, EXIT_DATA) from None
    return document


def _changed(folder: Path, document: dict[str, Any]) -> list[str]:
    faults = []
    for item in document["predicate"]["runDetails"]["byproducts"]:
        path = folder / item["name"]
        if not path.is_file():
            faults.append(f"{path}: is missing")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != item["digest"]["sha256"]:
            faults.append(f"{path}: is not the file that was signed")
    return faults


def _silent() -> list[str]:
    """Options by which no service learns of the signature: the public log is append-only.

    From version 3 on cosign takes the addresses of services from the network unless told not to, and then
    refuses or, in 3.0.2, ignores --tlog-upload (its issues 4503, 4778, 5043).
    """
    return [*_plain(), *(["--use-signing-config=false"] if _major() >= 3 else []), "--tlog-upload=false"]


def _plain() -> list[str]:
    """A signature alone, in a file or beside the image, is the default up to version 2."""
    return ["--new-bundle-format=false"] if _major() >= 3 else []


def _major() -> int:
    _require_cosign()
    done = subprocess.run(["cosign", "version"], capture_output=True, text=True, check=False)
    found = re.search(r"GitVersion:\s*v?(\d+)\.", done.stdout + done.stderr)
    return int(found[1]) if found else 2


def _require_cosign() -> None:
    if not shutil.which("cosign"):
        hint = "Debian 13 and later: apt-get install cosign; elsewhere a release of sigstore/cosign on GitHub"
        raise UserError("sign: the program cosign is not installed", hint, EXIT_UNAVAILABLE)


def _cosign(*arguments: str) -> None:
    _require_cosign()
    # Its question for the key's password goes to the terminal; COSIGN_PASSWORD answers it.
    done = subprocess.run(
        ["cosign", *arguments], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, check=False
    )
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit {done.returncode}"]
        said = re.sub(r"^(?:error: |error during command execution: )*", "", words[-1], flags=re.IGNORECASE)
        message = f"cosign {arguments[0]}: {said}"
        hint = "look at the key, its password (COSIGN_PASSWORD), and what it is about"
        raise UserError(message, hint, EXIT_CHECK_FAILED)
