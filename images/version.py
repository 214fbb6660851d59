"""Compare versions of packages, toolkits and drivers: 2.10.0.post4, 9.1.0, 8.3.RC1, 6.3.30-V1.4.1a."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from itertools import zip_longest

Part = tuple[int, int, str]
# A version that ends earlier goes on with zeros: 2.10 is 2.10.0, after 2.10.0rc1, before 2.10.0.post1.
END: Part = (0, 0, "")
BEFORE = {"dev": -4, "a": -3, "alpha": -3, "b": -2, "beta": -2, "rc": -1}
COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
TERM = re.compile(r"(==|!=|>=|<=|>|<)?\s*(\d[\w.+-]*)")


def is_version(text: str) -> bool:
    """Does it begin with a digit? `none` and `unknown` do not."""
    return text[:1].isdigit()


def public(version: str) -> str:
    """Return a version without its local label: 2.10.0 of 2.10.0+cpu."""
    return version.partition("+")[0]


def compare(one: str, other: str) -> int:
    """Return -1, 0 or 1; a local label (+cpu) says nothing about the order."""
    for left, right in zip_longest(_parts(one), _parts(other), fillvalue=END):
        if left != right:
            return 1 if left > right else -1
    return 0


def matches(version: str, wanted: str) -> bool:
    """Is a version in a range such as `>=2.6,<3`? A version alone means exactly this one."""
    return all(COMPARISONS[sign](compare(version, bound), 0) for sign, bound in terms(wanted))


def terms(wanted: str) -> list[tuple[str, str]]:
    """Return (comparison, version) of each part of a range; raises ValueError if it is not one."""
    found = []
    for text in wanted.split(","):
        match = TERM.fullmatch(text.strip())
        if not match:
            raise ValueError(f"{wanted!r} is not a version or a range such as '>=2.6,<3'")
        found.append((match[1] or "==", match[2]))
    return found


def closest(version: str, wanted: str) -> str | None:
    """Return the end of a range that is nearest to a version outside it; None where that end is open."""
    for sign, bound in terms(wanted):
        if not COMPARISONS[sign](compare(version, bound), 0):
            return bound if sign in ("==", ">=", "<=") else None
    return version


def _parts(version: str) -> list[Part]:
    words = re.findall(r"\d+|[a-z]+", public(version).lower())
    result = []
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        if word.isdigit():
            result.append((0, int(word), ""))
        else:
            # A letter at the end, as in 1.4.1a, is a later build; before a number it is a pre-release.
            result.append((BEFORE[word], 0, "") if word in BEFORE and following.isdigit() else (1, 0, word))
    return result
