"""Durations of overrides: `for` in the body of a change."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from llm_guard.policy.units import parse_duration

_NOT_NOTHING = r"(?![0.]*[a-z])"
_MOST = r"([0-9]{1,4}h|[0-9]{1,6}m|[0-9]{1,8}s|[0-9]{1,11}ms|[0-9]{1,4}\.[0-9]{1,3}(h|m|s|ms))"
"""Far below what a date can represent."""
Duration = Annotated[
    str,
    Meta(
        pattern=f"^{_NOT_NOTHING}{_MOST}$",
        description="A duration such as 200ms, 1.5s, 2m or 1h: more than nothing, and at most 9999h or 999999m.",
    ),
]


def seconds_of(text: str) -> float:
    """Returns the seconds of a `Duration`."""
    return parse_duration(text)


def optional_seconds_of(text: str | None) -> float | None:
    """Returns the seconds, or None for no end."""
    return None if text is None else seconds_of(text)
