"""Commands of build.py on a built image: verify, inventory, sign, verify-signature; the work is elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from images.options import Parser
from images.selection import add_selection, selected

if TYPE_CHECKING:
    from images.spec import BackendSpec


def run_verify(given: list[str]) -> None:
    """`build.py verify`: run the verification inside an image, on this host, and keep its report."""
    parser = Parser(prog="build.py verify", description=run_verify.__doc__, allow_abbrev=False)
    add_selection(parser)
    parser.add_argument("image", nargs="?", metavar="IMAGE", help="default: the image of the spec's lock")
    parser.add_argument("--evidence", type=Path, metavar="DIR", help="where the report goes: images/evidence")
    options = parser.parse_args(given)
    if not options.backend:
        parser.error("--backend is missing")

    from images.evidence import EVIDENCE
    from images.verify_command import verify

    (spec,) = selected(options)
    image = options.image or _default_image(spec)
    print("\n".join(verify(spec, image, options.evidence or EVIDENCE)))


def run_inventory(given: list[str]) -> None:
    """`build.py inventory`: SBOM, licences and provenance of an image, in a folder beside it."""
    parser = Parser(prog="build.py inventory", description=run_inventory.__doc__, allow_abbrev=False)
    add_selection(parser)
    what = "an image of the engine, or oci:PATH (default: the image of the spec's lock)"
    parser.add_argument("image", nargs="?", metavar="IMAGE", help=what)
    parser.add_argument("--output", type=Path, metavar="DIR", required=True, help="the folder")
    options = parser.parse_args(given)
    if not options.backend:
        parser.error("--backend is missing")

    from images.inventory import write_inventory

    (spec,) = selected(options)
    print("\n".join(write_inventory(spec, options.image or _default_image(spec), options.output)))


def run_sign(given: list[str]) -> None:
    """`build.py sign`: sign an inventory, which names its image by digest, or an image in a registry."""
    options = _signature_parser("build.py sign", run_sign.__doc__, "cosign's private key").parse_args(given)

    from images.signing import sign

    print(sign(options.target, options.key))


def run_verify_signature(given: list[str]) -> None:
    """`build.py verify-signature`: is it signed with this key, and is it what was signed?"""
    what = "cosign's public key"
    parser = _signature_parser("build.py verify-signature", run_verify_signature.__doc__, what)
    parser.add_argument(
        "--image", metavar="IMAGE", help="an image of the engine, or oci:PATH, to compare too"
    )
    options = parser.parse_args(given)

    from images.signing import verify_signature

    print("\n".join(verify_signature(options.target, options.key, options.image)))


def _signature_parser(name: str, about: str | None, key: str) -> Parser:
    parser = Parser(prog=name, description=about, allow_abbrev=False)
    parser.add_argument("target", metavar="DIR|IMAGE", help="a folder of `inventory`, or NAME@sha256:...")
    parser.add_argument("--key", type=Path, metavar="FILE", required=True, help=key)
    return parser


def _default_image(spec: BackendSpec) -> str:
    from images.lockfile import require_fresh

    return f"isotune:{spec.image}-{require_fresh(spec).lock_id}"
