"""Phrases that name the keys and callers of a limit."""

from __future__ import annotations

from collections.abc import Collection

_MOST_NAMED = 3
_DIGEST_CHARS = 64


def for_callers(callers: Collection[str] | None) -> str:
    """Returns a phrase for the end of a clause; empty if the limit is for all callers. Keys that callers bring are
    shown by the beginning of their digest."""
    if callers is None or "" in callers:
        return ""
    names = [f"key {name[:12]}" if len(name) == _DIGEST_CHARS else name for name in sorted(callers)]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f", for calls of {', '.join(names[:_MOST_NAMED])}{more} alone"


def of_key(own: str | None) -> str:
    """Returns a phrase for the beginning; `own` names one of several keys of an upstream."""
    return f"key {own}: " if own else ""


def of_callers_keys(count: int, own: str | None) -> str:
    """Returns a phrase for the end of a clause about `count` cooldowns; empty for those of an upstream's own key."""
    return "" if own is not None else f" (for {count} of the keys or accounts that callers bring)"
