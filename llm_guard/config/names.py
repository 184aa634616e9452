"""Finds the entry of `models` for a model name.

Defines valid names and the matching. What is found there is in `routing.route_table`.
"""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable

_LONGEST = 256
UPSTREAM_NAME = "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Pattern of the names of upstreams and engines: they are parts of URL paths."""
MODEL_NAME = rf"^[^?\[\]]{{1,{_LONGEST}}}$"
"""Pattern of the keys of `models`."""


def is_name(text: str) -> bool:
    """True for a valid model name: 1 to 256 characters, all of them printable."""
    return 0 < len(text) <= _LONGEST and text.isprintable()


def is_pattern(key: str) -> bool:
    """True if a key of `models` matches many names. Only `*` is a wildcard: any text, also none."""
    return "*" in key


def matching_key(keys: Iterable[str], name: str) -> str | None:
    """The key that matches `name`: itself, else the longest pattern (the first of several), else None."""
    keys = tuple(keys)
    if name in keys:
        return name
    patterns = (key for key in keys if is_pattern(key) and fnmatch.fnmatchcase(name, key))
    return max(patterns, key=len, default=None)


def near_names(name: str, known: Iterable[str], limit: int = 3) -> tuple[str, ...]:
    """At most `limit` known names that `name` may be a misspelling of, likeliest first."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    # Truncated: the time grows with the length, which a client chooses.
    found = difflib.get_close_matches(name[:_LONGEST].lower(), by_lower, limit)
    return tuple(by_lower[lower] for lower in found)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """End of an error message: a suggestion, the list of choices, or nothing."""
    known = tuple(known)
    near = near_names(name, known, 1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; known: {', '.join(known[:12])}{', ...' if len(known) > 12 else ''}" if known else ""
