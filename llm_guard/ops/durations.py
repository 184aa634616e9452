"""How long an operator's word holds: `for` in the body of a change.

Owns how it is written and its bounds. Does not own what happens when it is over.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from llm_guard.ops.pages import Refused
from llm_guard.policy.units import parse_duration

_PATTERN = r"^[0-9]+(\.[0-9]+)?(ms|s|m|h)$"
Duration = Annotated[str, Meta(pattern=_PATTERN, max_length=20, description="200ms, 5s, 2m or 1h; a year at most.")]

_LONGEST_S = 366 * 86_400.0


def seconds_of(text: str) -> float:
    """Raises Refused."""
    try:
        seconds = parse_duration(text)
    except ValueError as error:
        raise Refused(422, "invalid_body", f"`for`: {error}") from None
    if seconds > _LONGEST_S:
        raise Refused(422, "invalid_body", "`for`: a year at most")
    return seconds


def optional_seconds_of(text: str | None) -> float | None:
    """None stays None: as long as you like. Raises Refused."""
    return None if text is None else seconds_of(text)
