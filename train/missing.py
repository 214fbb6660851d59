"""Libraries that only a host's driver brings: what a container without them says, instead of a traceback."""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Iterator

from train.errors import EXIT_UNAVAILABLE, UserError
from train.image import BuildInfo, read_build_info

UNLOADABLE = re.compile(r"([\w.+-]+\.so[\w.]*): cannot open shared object file")
UNKNOWN = "no driver is known to bring it"
HINT = "`train doctor` shows all that this container lacks"


def missing_library(fault: BaseException) -> UserError | None:
    """The error to tell (exit 69) where a fault, or one that led to it, is a library that is not there."""
    names = list(dict.fromkeys(name for one in _chain(fault) for name in UNLOADABLE.findall(str(one))))
    if not names:
        return None
    image = None
    with contextlib.suppress(UserError):  # a build info that is broken is told by whoever needs it
        image = read_build_info()
    known = driver_libraries(image)
    lines = [f"{name}: cannot be loaded here: {known.get(name, UNKNOWN)}" for name in names]
    return UserError("\n".join(lines), HINT, EXIT_UNAVAILABLE)


def driver_libraries(image: BuildInfo | None) -> dict[str, str]:
    """File name -> who brings it, for each library that this image expects from the host's driver."""
    items = image.content.get("runtime", {}).get("libraries", []) if image else []
    return {item["name"]: f"the host's driver: {item['given_by']}" for item in items}


def absent_libraries(image: BuildInfo | None) -> list[str]:
    """A line for each library of the driver that cannot be loaded here."""
    known = driver_libraries(image)
    return [f"{name}: cannot be loaded here: {how}" for name, how in known.items() if not _loads(name)]


def _loads(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _chain(fault: BaseException | None) -> Iterator[BaseException]:
    """A fault and what led to it: torch wraps what its plugin's import raised."""
    while fault is not None:
        yield fault
        fault = fault.__cause__ or fault.__context__
