"""How a model is found by its name.

Owns what a name may be and which entry of `models` it means. Does not own what is found there (`routes`).
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable

_LONGEST = 256


def is_name(text: str) -> bool:
    """Whether a model may be called this: 1 to 256 characters, all of them printable."""
    return 0 < len(text) <= _LONGEST and text.isprintable()


def is_pattern(key: str) -> bool:
    """Whether a key of `models` stands for many names. Only `*` is a wildcard: any text, also none."""
    return "*" in key


def matching_key(keys: Iterable[str], name: str) -> str | None:
    """The key that `name` finds: itself, else the longest pattern (of equals the first), else None."""
    keys = tuple(keys)
    if name in keys:
        return name
    patterns = (key for key in keys if is_pattern(key) and fnmatch.fnmatchcase(name, key))
    return max(patterns, key=len, default=None)


def near_names(name: str, known: Iterable[str], limit: int = 3) -> tuple[str, ...]:
    """At most `limit` of the known names that `name` may be a slip of, likeliest first."""
    by_lower = {each.lower(): each for each in known}
    # The time this takes grows with the length, and a client chooses it.
    found = difflib.get_close_matches(name[:_LONGEST].lower(), by_lower, limit)
    return tuple(by_lower[lower] for lower in found)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error message: a suggestion, or what there is to choose from, or nothing."""
    known = tuple(known)
    near = near_names(name, known, 1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; known: {', '.join(known[:12])}{', ...' if len(known) > 12 else ''}" if known else ""
