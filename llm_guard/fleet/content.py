"""What a gateway publishes to the others of its fleet, as bytes.

A newer version of the gateway may publish more: unknown fields are ignored, and missing ones have defaults. What cannot
be read is ignored as a whole: it cannot be of this version, or somebody else writes to the store.
"""

from __future__ import annotations

from dataclasses import astuple
from math import isfinite

import msgspec

from llm_guard.resilience.circuit_breaker.shared_evidence import BreakerSummary


class Content(msgspec.Struct, frozen=True, omit_defaults=True):
    """The summaries of one gateway's breakers, by subject (`fleet.breakers`)."""

    breakers: dict[str, BreakerSummary] = {}


_read = msgspec.msgpack.Decoder(Content).decode
encode = msgspec.msgpack.Encoder().encode


def decode(content: bytes) -> Content | None:
    """Returns what another gateway has published; None if it cannot be read."""
    try:
        found = _read(content)
    except (msgspec.DecodeError, ValueError):
        return None
    return found if all(map(_is_plausible, found.breakers.values())) else None


def _is_plausible(summary: BreakerSummary) -> bool:
    """Returns whether all numbers are finite and at least 0."""
    return all(
        isfinite(number) and number >= 0
        for value in astuple(summary)
        for number in (value if isinstance(value, tuple) else (value,))
        if isinstance(number, int | float)
    )
