"""`python -m train.checks.host`: the examination from the host's side, for `build.py doctor`.

Takes one JSON object on stdin: `root`, `seen` (what the caller found itself), `engine` (runtimes, cdi) and
`json`.
ISOTUNE_BUILD_INFO names the image's build info.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from train.checks.host.examine import IMAGE_USER, examine
from train.checks.host.finding import Seen
from train.checks.host.lines import Engine
from train.checks.host.needs import read_needs
from train.checks.host.root import Root
from train.errors import EXIT_CONFIG, UserError
from train.image import VARIABLE, read_build_info


def main() -> int:
    """Print the report; returns its exit code."""
    asked = json.load(sys.stdin)
    try:
        image = read_build_info()
        if image is None:
            raise UserError(f"host: {VARIABLE} is not set", "build.py doctor sets it", EXIT_CONFIG)
        needs = read_needs(image)
        root = Root(Path(asked["root"]), IMAGE_USER, needs.tool_folders)
        extra = [Seen(**one) for one in asked["seen"]]
        engine = Engine(tuple(asked["engine"]["runtimes"]), tuple(asked["engine"]["cdi"]))
        report = examine(needs, root, True, extra, engine)
    except UserError as fault:
        print(fault, file=sys.stderr)
        return fault.exit_code
    print(json.dumps(report.as_dict(), indent=2) if asked["json"] else "\n".join(report.lines()))
    return report.exit_code


if __name__ == "__main__":
    sys.exit(main())
